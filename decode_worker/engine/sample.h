// One sample of a request in the step loop: its cached state, its sampler and
// the rules that end it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model.h"
#include "common/request/request.h"
#include "decode_worker/engine/token_sampler.h"
#include "decode_worker/output/request_output.h"
#include "decode_worker/output/stop_gate.h"
#include "decode_worker/scheduler/scheduler.h"

namespace baton::decode_worker {

// Owned by the step loop; not thread-safe.
class Sample final {
 public:
  struct Config {
    TokenSampler::Config sampler;
    SampleMemory memory = {};
    int64_t prompt_tokens = 0;
    const OutputVocabulary* vocabulary = nullptr;
    std::shared_ptr<const tokenizer::StopSet> stop_set = nullptr;  // null: none
  };
  explicit Sample(Config config);

  enum class Outcome {
    kContinues,
    kEnded,        // the end is in the output
    kNoCandidate,  // the logits were NaN or all banned: nothing was appended
  };
  // Draws the next token and puts what may leave into `output`. The rules, in
  // order: an end id (kStop, delivered without text), a stop string (kStop, cut
  // at the match), max_tokens (kLength).
  Outcome Advance(absl::Span<const float> logits,
                  kernels::SamplingScratch* scratch, RequestOutput* output);

  // The token to feed next; only while the sample continues.
  const int32_t& next_token() const { return next_token_; }
  int32_t index() const { return index_; }
  bool ended() const { return ended_; }
  int32_t output_tokens() const { return sampler_.output_tokens(); }

  model::SequenceState& state() { return state_; }
  const SampleMemory& memory() const { return memory_; }

 private:
  // How the token that was just drawn ends the sample, if it does.
  std::optional<SampleEnd> EndOf(int32_t id) const;

  const request::SamplingParams* const params_;
  const std::vector<int32_t>* const end_ids_;
  const int32_t index_;
  const SampleMemory memory_;
  model::SequenceState state_;
  TokenSampler sampler_;
  std::optional<StopGate> gate_;   // with stop strings
  std::vector<OutputToken> held_;  // not safe to deliver yet
  int32_t delivered_tokens_ = 0;
  int32_t next_token_ = -1;
  bool ended_ = false;
};

}  // namespace baton::decode_worker
