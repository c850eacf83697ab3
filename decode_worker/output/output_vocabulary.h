// What output tokens are in bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::decode_worker {

// Immutable, hence thread-safe. The tokenizer outlives it and may be null: a
// model without one is served by token ids, and its text is empty.
class OutputVocabulary final {
 public:
  // `end_ids`: end-of-sequence. They have no text, nor have beginning of
  // sentence and padding; all other added tokens do, since parsers of reasoning
  // and tool calls read them (model.md 8.1).
  OutputVocabulary(const tokenizer::Tokenizer* tokenizer,
                   std::vector<int32_t> end_ids);

  // What a token contributes to the text; empty for ids without a token.
  absl::string_view TextBytes(int32_t id) const;
  // The token itself, for log-probabilities.
  absl::string_view TokenBytes(int32_t id) const;

 private:
  const tokenizer::Tokenizer* const tokenizer_;
  std::vector<int32_t> silent_ids_;
};

}  // namespace baton::decode_worker
