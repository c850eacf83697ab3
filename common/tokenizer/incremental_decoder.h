// Turns token ids into text as they are generated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::tokenizer {

struct DecodeOptions {
  // Tokens that give no text: beginning and end of sentence, padding. Bytes on
  // both sides of one join. This is a list because the file's special flag does
  // not say it: some files flag <think> and </think> too, which parsers of
  // reasoning and tool calls must see (model.md 8.1).
  std::vector<int32_t> skip_ids;
};

// Each returned piece is valid UTF-8. A character whose bytes are still
// arriving is held back (at most 3 bytes); bytes that no continuation can make
// valid become U+FFFD, one per maximal subpart. All pieces joined equal
// ToValidUtf8 of the bytes of all tokens. Not thread-safe; the tokenizer must
// outlive it.
class IncrementalDecoder final {
 public:
  IncrementalDecoder(const Tokenizer* tokenizer, DecodeOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}

  // Text that became certain with this token. InvalidArgument on an unknown id,
  // which leaves the decoder as it was.
  absl::StatusOr<std::string> Append(int32_t id);

  // The same for bytes from elsewhere.
  std::string AppendBytes(absl::string_view bytes);

  // End of generation: a held back part becomes U+FFFD. The decoder is then as
  // new.
  std::string Flush();

  // Bytes held back, 0..3.
  int64_t held_bytes() const { return static_cast<int64_t>(held_.size()); }

 private:
  const Tokenizer* const tokenizer_;
  const DecodeOptions options_;
  std::string held_;
};

}  // namespace baton::tokenizer
