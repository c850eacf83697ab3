// The chat encoding of DeepSeek-V4 (model.md 8.2): a conversation becomes
// prompt tokens. A prompt is a list of pieces, each either a control token
// given by id or text that is encoded with added tokens ignored, so that no
// content can forge a control token. Text between two control tokens is encoded
// in one pass: where content has no control literals the ids are those of the
// reference's single pass over the rendered string.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/message.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::chat {

// Which release's meaning the reasoning efforts have. Preview: `max` adds its
// prefix, others nothing. 0731: `high` and `max` add theirs.
enum class EffortRelease { kPreview, k0731 };

struct ChatOptions {
  EffortRelease effort_release = EffortRelease::kPreview;
  // The prefix texts ship with a checkpoint (encoding/encoding_dsv4.py) and are
  // not part of this program. An effort whose text is absent is refused.
  std::optional<std::string> high_effort_prefix;
  std::optional<std::string> max_effort_prefix;
};

// Immutable, hence thread-safe. The tokenizer must outlive it.
class ChatEncoder final {
 public:
  // FailedPrecondition if the tokenizer lacks a control token that every prompt
  // may need (named). InvalidArgument if a prefix text is not the one that
  // model.md 8.2 identifies by its SHA-256.
  static absl::StatusOr<std::unique_ptr<ChatEncoder>> Create(
      const tokenizer::Tokenizer* tokenizer, ChatOptions options);

  // Prompt tokens. Every prompt ends with the assistant's opening or a task
  // token, except that of a message to be continued. InvalidArgument names the
  // message (counted from 0) and what is wrong:
  //   no messages; unknown role; a field that the role does not have; invalid
  //   UTF-8; tools; a tool result without its call; unknown task; a last
  //   message from the assistant (unless it is to be continued) or a reminder.
  // FailedPrecondition: this model has no token for what is asked (task,
  // reminder), or the effort's prefix text was not supplied.
  absl::StatusOr<std::vector<int32_t>> EncodeChat(
      const Conversation& conversation) const;

  // The same prompt as text, control tokens as their literals.
  absl::StatusOr<std::string> RenderChat(
      const Conversation& conversation) const;

  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }

 private:
  ChatEncoder(const tokenizer::Tokenizer* tokenizer, ChatOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}

  const tokenizer::Tokenizer* const tokenizer_;
  const ChatOptions options_;
  std::map<std::string, int32_t> control_ids_;  // by literal; those that exist
  int32_t bos_id_ = 0;
  int32_t eos_id_ = 0;
};

}  // namespace baton::chat
