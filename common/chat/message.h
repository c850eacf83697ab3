// A conversation as the public API gives it, before it becomes prompt tokens.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::chat {

enum class Role {
  kUnspecified,  // refused
  kSystem,
  kUser,
  kAssistant,
  kTool,
  kDeveloper,
  kLatestReminder,
};

// Name as in messages and errors: "user".
absl::string_view RoleName(Role role);

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON object; anything else is passed as one string
};

struct Message {
  Role role = Role::kUnspecified;
  std::string content;
  std::string reasoning;             // assistant only
  std::vector<ToolCall> tool_calls;  // assistant only
  std::string tool_call_id;          // tool only: the call that it answers
  // user and developer only: empty, "action", "query", "authority", "domain",
  // "title" or "read_url".
  std::string task;
};

enum class ThinkingMode { kChat, kThinking };

// No effect in chat mode.
enum class ReasoningEffort { kUnspecified, kLow, kHigh, kMax };

struct Conversation {
  std::vector<Message> messages;
  std::string tools_json;  // schemas; refused by this version when not empty
  ThinkingMode thinking_mode = ThinkingMode::kChat;
  ReasoningEffort reasoning_effort = ReasoningEffort::kUnspecified;
  // Thinking mode: leave out reasoning of turns before the last user message.
  bool drop_thinking = true;
  // The last message is from the assistant and is to be continued: its end
  // token is left out.
  bool continue_final_message = false;
};

}  // namespace baton::chat
