// First half of the chat encoding: checks a conversation and brings it into the
// form that is rendered, without reference to a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/message.h"

namespace baton::chat {

// A message after merging: tool results and consecutive user messages are
// blocks of one user turn.
struct Turn {
  Role role = Role::kUnspecified;  // never kTool
  std::string text;                // all blocks, joined as rendered
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  std::string task;
};

// model.md 8.2, "pre-processing". InvalidArgument as ChatEncoder::EncodeChat
// documents.
absl::StatusOr<std::vector<Turn>> MakeTurns(const Conversation& conversation);

// Index of the last user or developer turn, -1 if there is none.
int64_t LastUserTurn(const std::vector<Turn>& turns);

// model.md 8.2, "dropping old reasoning": clears reasoning of assistant turns
// before the last user turn and removes developer turns before it.
std::vector<Turn> DropOldReasoning(std::vector<Turn> turns);

}  // namespace baton::chat
