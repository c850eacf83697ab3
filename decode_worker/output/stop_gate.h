// Decides in the step loop which output tokens may leave while a stop string
// may still be completing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "common/tokenizer/stop_matcher.h"
#include "decode_worker/output/output_vocabulary.h"

namespace baton::decode_worker {

// A token is safe once no byte of it can belong to a later match, so text
// leaves in whole tokens and never ahead of its ids. On a match the tokens that
// begin before it are delivered and the text is cut at it.
//
// The first `min_tokens` tokens are not searched: a match can only begin after
// them, hence the delivered ids are never fewer. Used by one thread.
class StopGate final {
 public:
  StopGate(const OutputVocabulary* vocabulary,
           std::shared_ptr<const tokenizer::StopSet> stops, int32_t min_tokens)
      : vocabulary_(vocabulary),
        matcher_(std::move(stops)),
        unsearched_tokens_(min_tokens) {}

  struct Result {
    int32_t safe_tokens = 0;  // tokens from the start that may be delivered
    bool matched = false;
    int64_t text_bytes = 0;  // matched: bytes of text before the match
  };
  // The next output token. Not after a match.
  Result Push(int32_t id);
  // The sample ended without a match: everything is safe.
  Result Finish();

 private:
  const OutputVocabulary* const vocabulary_;
  tokenizer::StopMatcher matcher_;
  int32_t unsearched_tokens_;
  int64_t unsearched_bytes_ = 0;  // matcher offsets count from here
  int64_t bytes_ = 0;
  int32_t pushed_tokens_ = 0;
  int32_t safe_tokens_ = 0;
  // [begin, end) in bytes of the tokens that are not safe yet.
  struct Extent {
    int64_t begin;
    int64_t end;
  };
  std::deque<Extent> held_;
};

}  // namespace baton::decode_worker
