#include "common/chat/turns.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/utf8.h"

namespace baton::chat {
namespace {

template <typename... Args>
absl::Status Bad(size_t index, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("message ", index, args...));
}

absl::Status CheckFieldUtf8(size_t index, absl::string_view field,
                            absl::string_view text) {
  return tokenizer::CheckUtf8(text,
                              absl::StrCat("message ", index, ": ", field));
}

absl::Status CheckText(size_t index, const Message& message) {
  RETURN_IF_ERROR(CheckFieldUtf8(index, "content", message.content));
  RETURN_IF_ERROR(CheckFieldUtf8(index, "reasoning", message.reasoning));
  for (const ToolCall& call : message.tool_calls) {
    RETURN_IF_ERROR(CheckFieldUtf8(index, "tool call name", call.name));
    RETURN_IF_ERROR(
        CheckFieldUtf8(index, "tool call arguments", call.arguments));
  }
  return absl::OkStatus();
}

// Fields that belong to another role are a client's mistake, not noise.
absl::Status CheckFields(size_t index, const Message& message) {
  const absl::string_view role = RoleName(message.role);
  if (message.role == Role::kUnspecified) {
    return Bad(index,
               ": unknown role, expected system, user, assistant, tool, "
               "developer or latest_reminder");
  }
  const bool assistant = message.role == Role::kAssistant;
  if (!assistant && !message.reasoning.empty()) {
    return Bad(index, ": reasoning on a ", role,
               " message, only assistant messages have it");
  }
  if (!assistant && !message.tool_calls.empty()) {
    return Bad(index, ": tool_calls on a ", role,
               " message, only assistant messages have them");
  }
  if (message.role != Role::kTool && !message.tool_call_id.empty()) {
    return Bad(index, ": tool_call_id on a ", role,
               " message, only tool messages have it");
  }
  if (message.role == Role::kDeveloper && message.content.empty()) {
    return Bad(index, ": a developer message needs content");
  }
  if (!message.task.empty() && message.role != Role::kUser &&
      message.role != Role::kDeveloper) {
    return Bad(index, ": task on a ", role,
               " message, only user and developer messages have one");
  }
  absl::flat_hash_set<absl::string_view> ids;
  for (const ToolCall& call : message.tool_calls) {
    if (call.name.empty()) return Bad(index, ": a tool call has no name");
    if (!call.id.empty() && !ids.insert(call.id).second) {
      return Bad(index, ": two tool calls have the id '", call.id, "'");
    }
  }
  return CheckText(index, message);
}

absl::Status CheckLast(const Conversation& conversation) {
  const size_t last = conversation.messages.size() - 1;
  const Role role = conversation.messages[last].role;
  if (conversation.continue_final_message) {
    if (role == Role::kAssistant) return absl::OkStatus();
    return Bad(last,
               ": continue_final_message is set, so the last message "
               "must be from the assistant, not ",
               RoleName(role));
  }
  if (role == Role::kAssistant) {
    return Bad(last,
               ": the last message is from the assistant; end with a user, "
               "tool or system message, or set continue_final_message");
  }
  if (role == Role::kLatestReminder) {
    return Bad(last,
               ": the last message is a latest_reminder; end with a "
               "user, tool or system message");
  }
  return absl::OkStatus();
}

// One tool result, or the content of one user message.
struct Block {
  std::string text;
  bool is_result = false;
  int64_t call = 0;  // a result's place among the calls
};

std::string JoinBlocks(std::vector<Block> blocks) {
  // Results take each other's places, in the order of the calls; other blocks
  // stay where they are.
  std::vector<Block> results;
  for (const Block& block : blocks) {
    if (block.is_result) results.push_back(block);
  }
  std::stable_sort(
      results.begin(), results.end(),
      [](const Block& a, const Block& b) { return a.call < b.call; });
  size_t next = 0;
  for (Block& block : blocks) {
    if (block.is_result) block = results[next++];
  }
  return absl::StrJoin(blocks, "\n\n",
                       [](std::string* out, const Block& block) {
                         absl::StrAppend(out, block.text);
                       });
}

// Collects blocks until the user turn is complete.
class TurnBuilder final {
 public:
  absl::Status Add(size_t index, const Message& message) {
    if (message.role == Role::kTool) return AddResult(index, message);
    if (message.role == Role::kUser) {
      // A task ends its turn: later text does not belong to it.
      if (blocks_.empty() || !task_.empty()) {
        Close();
        task_ = message.task;
      } else if (!message.task.empty()) {
        return Bad(index,
                   ": a task on a user message that follows another "
                   "user or tool message would be lost; put it on the "
                   "first of them");
      }
      blocks_.push_back({message.content, /*is_result=*/false, /*call=*/0});
      return absl::OkStatus();
    }
    Close();
    if (message.role == Role::kAssistant && !message.tool_calls.empty()) {
      calls_.clear();
      for (size_t i = 0; i < message.tool_calls.size(); ++i) {
        calls_.emplace(message.tool_calls[i].id, static_cast<int64_t>(i));
      }
    }
    turns_.push_back({message.role, message.content, message.reasoning,
                      message.tool_calls, message.task});
    return absl::OkStatus();
  }

  std::vector<Turn> Finish() {
    Close();
    return std::move(turns_);
  }

 private:
  absl::Status AddResult(size_t index, const Message& message) {
    const auto call = calls_.find(message.tool_call_id);
    if (call == calls_.end() || message.tool_call_id.empty()) {
      return Bad(index, ": tool_call_id '", message.tool_call_id,
                 "' does not answer a call of the assistant message before "
                 "it, or was answered already");
    }
    if (!task_.empty()) {
      return Bad(index, ": a tool message follows a user message with a task");
    }
    blocks_.push_back(
        {absl::StrCat("<tool_result>", message.content, "</tool_result>"),
         /*is_result=*/true, call->second});
    calls_.erase(call);
    return absl::OkStatus();
  }

  void Close() {
    if (blocks_.empty()) return;
    turns_.push_back({Role::kUser,
                      JoinBlocks(std::move(blocks_)),
                      "",
                      {},
                      std::move(task_)});
    blocks_.clear();
    task_.clear();
  }

  std::vector<Turn> turns_;
  std::vector<Block> blocks_;  // of the user turn being collected
  std::string task_;           // of that turn
  // Calls of the latest assistant message that made any, not yet answered.
  absl::flat_hash_map<std::string, int64_t> calls_;
};

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kUnspecified:
      return "unspecified";
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
    case Role::kDeveloper:
      return "developer";
    case Role::kLatestReminder:
      return "latest_reminder";
  }
  return "unknown";
}

absl::StatusOr<std::vector<Turn>> MakeTurns(const Conversation& conversation) {
  if (!conversation.tools_json.empty()) {
    return absl::InvalidArgumentError(
        "tools are not supported by this version; send the request without "
        "tool schemas");
  }
  if (conversation.messages.empty()) {
    return absl::InvalidArgumentError(
        "the conversation has no messages, expected at least one");
  }
  TurnBuilder builder;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    RETURN_IF_ERROR(CheckFields(i, conversation.messages[i]));
    RETURN_IF_ERROR(builder.Add(i, conversation.messages[i]));
  }
  RETURN_IF_ERROR(CheckLast(conversation));
  return builder.Finish();
}

int64_t LastUserTurn(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].role == Role::kUser || turns[i].role == Role::kDeveloper) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

std::vector<Turn> DropOldReasoning(std::vector<Turn> turns) {
  const int64_t last_user = LastUserTurn(turns);
  std::vector<Turn> out;
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool old = static_cast<int64_t>(i) < last_user;
    if (old && turns[i].role == Role::kDeveloper) continue;
    if (old) turns[i].reasoning.clear();
    out.push_back(std::move(turns[i]));
  }
  return out;
}

}  // namespace baton::chat
