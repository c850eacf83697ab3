#include "common/chat/chat_encoder.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/chat/control_tokens.h"
#include "common/chat/tool_arguments.h"
#include "common/chat/turns.h"

namespace baton::chat {
namespace {

using tokenizer::AddedTokens;

// SHA-256 of the effort prefixes (model.md 8.2): the preview's `max`, which is
// the 0731 release's `high`, and the 0731 release's `max`.
constexpr char kPreviewMaxHash[] =
    "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7";
constexpr char k0731MaxHash[] =
    "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c";

constexpr std::array<const char*, 7> kRequired = {
    kBos, kEos, kUser, kAssistant, kThinkOpen, kThinkClose, kDsml};

struct Task {
  const char* name;
  const char* token;
};
constexpr std::array<Task, 6> kTasks = {{{"action", kAction},
                                         {"query", kQuery},
                                         {"authority", kAuthority},
                                         {"domain", kDomain},
                                         {"title", kTitle},
                                         {"read_url", kReadUrl}}};

absl::Status CheckPrefix(const std::optional<std::string>& prefix,
                         absl::string_view effort, absl::string_view hash) {
  if (!prefix.has_value()) return absl::OkStatus();
  const std::string actual = HexOf(Sha256(*prefix));
  if (actual == hash) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the prefix text for reasoning effort ", effort,
                   " has SHA-256 ", actual, ", expected ", hash));
}

// Either a control token (its literal) or text.
struct Piece {
  bool is_control = false;
  std::string text;
};

class Renderer final {
 public:
  Renderer(const Conversation& conversation, const ChatOptions& options)
      : conversation_(conversation),
        options_(options),
        thinking_(conversation.thinking_mode == ThinkingMode::kThinking) {}

  absl::StatusOr<std::vector<Piece>> Run() {
    ASSIGN_OR_RETURN(turns_, MakeTurns(conversation_));
    if (thinking_ && conversation_.drop_thinking) {
      turns_ = DropOldReasoning(std::move(turns_));
    }
    last_user_ = LastUserTurn(turns_);
    Control(kBos);
    if (thinking_) RETURN_IF_ERROR(EffortPrefix());
    for (size_t i = 0; i < turns_.size(); ++i) {
      RETURN_IF_ERROR(Body(i));
      RETURN_IF_ERROR(Transition(i));
    }
    return std::move(pieces_);
  }

 private:
  void Control(absl::string_view literal) {
    pieces_.push_back({/*is_control=*/true, std::string(literal)});
  }
  void Text(absl::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().is_control) pieces_.emplace_back();
    absl::StrAppend(&pieces_.back().text, text);
  }

  absl::Status EffortPrefix() {
    const ReasoningEffort effort = conversation_.reasoning_effort;
    const bool high = effort == ReasoningEffort::kHigh &&
                      options_.effort_release == EffortRelease::k0731;
    const bool max = effort == ReasoningEffort::kMax;
    if (!high && !max) return absl::OkStatus();
    const std::optional<std::string>& prefix =
        high ? options_.high_effort_prefix : options_.max_effort_prefix;
    if (!prefix.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "reasoning effort ", high ? "high" : "max",
          " needs the prefix text that ships with the checkpoint "
          "(encoding/encoding_dsv4.py), and this server was started without "
          "it"));
    }
    Text(*prefix);
    return absl::OkStatus();
  }

  bool IsLast(size_t i) const { return i + 1 == turns_.size(); }
  bool FollowedBy(size_t i, Role role) const {
    return !IsLast(i) && turns_[i + 1].role == role;
  }
  // Whether the reasoning of the assistant turn introduced by turn `i` is kept.
  bool OpensThinking(size_t i) const {
    return thinking_ && (!conversation_.drop_thinking ||
                         static_cast<int64_t>(i) >= last_user_);
  }

  absl::Status Body(size_t i) {
    const Turn& turn = turns_[i];
    switch (turn.role) {
      case Role::kSystem:
        Text(turn.text);
        return absl::OkStatus();
      case Role::kUser:
      case Role::kDeveloper:
        Control(kUser);
        Text(turn.text);
        return absl::OkStatus();
      case Role::kLatestReminder:
        Control(kLatestReminder);
        Text(turn.text);
        return absl::OkStatus();
      case Role::kAssistant:
        return Assistant(i);
      case Role::kTool:
      case Role::kUnspecified:
        break;
    }
    CHECK(false) << "role " << static_cast<int>(turn.role) << " in a turn";
    return absl::OkStatus();
  }

  absl::Status Assistant(size_t i) {
    const Turn& turn = turns_[i];
    const bool answers_task = i > 0 && !turns_[i - 1].task.empty();
    if (OpensThinking(i) && !answers_task) {
      Text(turn.reasoning);
      Control(kThinkClose);
    }
    Text(turn.text);
    if (!turn.tool_calls.empty()) RETURN_IF_ERROR(ToolCalls(turn));
    if (!(IsLast(i) && conversation_.continue_final_message)) Control(kEos);
    return absl::OkStatus();
  }

  absl::Status ToolCalls(const Turn& turn) {
    Text("\n\n");
    Tag("<", "tool_calls>\n");
    for (const ToolCall& call : turn.tool_calls) {
      Tag("<", absl::StrCat("invoke name=\"", call.name, "\">\n"));
      ASSIGN_OR_RETURN(const std::vector<ToolParameter> parameters,
                       ToolParameters(call.arguments));
      absl::string_view separator;
      for (const ToolParameter& parameter : parameters) {
        Text(separator);
        separator = "\n";
        Tag("<",
            absl::StrCat("parameter name=\"", parameter.name, "\" string=\"",
                         parameter.is_string ? "true" : "false", "\">",
                         parameter.value));
        Tag("</", "parameter>");
      }
      Text("\n");
      Tag("</", "invoke>\n");
    }
    Tag("</", "tool_calls>");
    return absl::OkStatus();
  }
  void Tag(absl::string_view before, absl::string_view after) {
    Text(before);
    Control(kDsml);
    Text(after);
  }

  // What introduces the next assistant turn.
  absl::Status Transition(size_t i) {
    const Turn& turn = turns_[i];
    if (!IsLast(i) && !FollowedBy(i, Role::kAssistant) &&
        !FollowedBy(i, Role::kLatestReminder)) {
      return absl::OkStatus();
    }
    if (!turn.task.empty()) return TaskToken(turn.task);
    // The reference opens no assistant turn after a last system message, and
    // the model then ends at once (vllm-project/vllm#43937).
    const bool last_system = turn.role == Role::kSystem && IsLast(i);
    if (turn.role == Role::kUser || turn.role == Role::kDeveloper ||
        last_system) {
      Control(kAssistant);
      Control(OpensThinking(i) ? kThinkOpen : kThinkClose);
    }
    return absl::OkStatus();
  }

  absl::Status TaskToken(absl::string_view name) {
    for (const Task& task : kTasks) {
      if (name != task.name) continue;
      if (name == "action") {
        Control(kAssistant);
        Control(thinking_ ? kThinkOpen : kThinkClose);
      }
      Control(task.token);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("unknown task '", name,
                     "', expected action, query, authority, domain, title or "
                     "read_url"));
  }

  const Conversation& conversation_;
  const ChatOptions& options_;
  const bool thinking_;
  std::vector<Turn> turns_;
  int64_t last_user_ = -1;
  std::vector<Piece> pieces_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatEncoder>> ChatEncoder::Create(
    const tokenizer::Tokenizer* tokenizer, ChatOptions options) {
  const bool preview = options.effort_release == EffortRelease::kPreview;
  RETURN_IF_ERROR(
      CheckPrefix(options.high_effort_prefix, "high", kPreviewMaxHash));
  RETURN_IF_ERROR(CheckPrefix(options.max_effort_prefix, "max",
                              preview ? kPreviewMaxHash : k0731MaxHash));
  std::unique_ptr<ChatEncoder> out(
      new ChatEncoder(tokenizer, std::move(options)));
  const auto look_up = [&](const char* literal) {
    const std::optional<int32_t> id = tokenizer->IdOf(literal);
    // An ordinary token that happens to spell the literal would be reachable
    // from user text.
    if (!id.has_value() || !tokenizer->IsAdded(*id)) return false;
    out->control_ids_[literal] = *id;
    return true;
  };
  for (const char* literal : kRequired) {
    if (!look_up(literal)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the tokenizer has no added token '", literal,
                       "', which the chat encoding needs"));
    }
  }
  look_up(kLatestReminder);
  for (const Task& task : kTasks) look_up(task.token);
  out->bos_id_ = out->control_ids_[kBos];
  out->eos_id_ = out->control_ids_[kEos];
  return out;
}

absl::StatusOr<std::vector<int32_t>> ChatEncoder::EncodeChat(
    const Conversation& conversation) const {
  ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                   Renderer(conversation, options_).Run());
  std::vector<int32_t> ids;
  for (const Piece& piece : pieces) {
    if (piece.is_control) {
      const auto it = control_ids_.find(piece.text);
      if (it == control_ids_.end()) {
        return absl::FailedPreconditionError(
            absl::StrCat("this model's tokenizer has no token '", piece.text,
                         "', which the conversation needs"));
      }
      ids.push_back(it->second);
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> text_ids,
                     tokenizer_->Encode(piece.text, AddedTokens::kIgnore));
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  }
  return ids;
}

absl::StatusOr<std::string> ChatEncoder::RenderChat(
    const Conversation& conversation) const {
  ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                   Renderer(conversation, options_).Run());
  std::string out;
  for (const Piece& piece : pieces) absl::StrAppend(&out, piece.text);
  return out;
}

}  // namespace baton::chat
