// Text of one sample, made when it is written and never in the step loop.
#pragma once

#include <cstdint>
#include <string>

#include "common/tokenizer/incremental_decoder.h"
#include "decode_worker/output/output_vocabulary.h"

namespace baton::decode_worker {

// Used by one thread at a time. All pieces joined are the valid UTF-8 text of
// the bytes of all tokens up to the limit.
class TextRenderer final {
 public:
  explicit TextRenderer(const OutputVocabulary* vocabulary)
      : vocabulary_(vocabulary),
        decoder_(/*tokenizer=*/nullptr, tokenizer::DecodeOptions{}) {}

  // Appends what became certain with this token.
  void Append(int32_t id, std::string* text);
  // Bytes of the whole output from `text_bytes` on are not text (a stop string
  // begins there). Not less than what was appended as certain.
  void Limit(int64_t text_bytes) { limit_bytes_ = text_bytes; }
  // End of the sample: an incomplete character becomes U+FFFD.
  void Flush(std::string* text) { text->append(decoder_.Flush()); }

 private:
  const OutputVocabulary* const vocabulary_;
  tokenizer::IncrementalDecoder decoder_;  // fed with bytes only
  int64_t bytes_ = 0;
  int64_t limit_bytes_ = -1;  // none
};

}  // namespace baton::decode_worker
