// Sampling state of one sample: penalties, banned ends, random key.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/request/request.h"
#include "decode_worker/output/request_output.h"
#include "kernels/include/sampling.h"

namespace baton::decode_worker {

// Owned by the step loop. What is drawn depends on the logits, the parameters
// and (seed, sample index, output index) only: not on the batch, the step or
// the attempt.
class TokenSampler final {
 public:
  struct Config {
    const request::SamplingParams* params = nullptr;  // outlives the sampler
    int32_t sample_index = 0;
    absl::Span<const int32_t> prompt_ids = {};
    // End-of-sequence and stop ids: not drawn before min_tokens.
    const std::vector<int32_t>* end_ids = nullptr;  // outlives the sampler
    int32_t top_logprobs = 0;
    bool want_logprobs = false;
  };
  explicit TokenSampler(const Config& config);

  // The next output token. id -1 when the logits leave no candidate.
  OutputToken Next(absl::Span<const float> logits,
                   kernels::SamplingScratch* scratch);

  int32_t output_tokens() const { return output_tokens_; }

 private:
  void Count(int32_t id);

  const request::SamplingParams* const params_;
  const std::vector<int32_t>* const end_ids_;
  const int32_t sample_index_;
  const int32_t top_logprobs_;
  const bool want_logprobs_;
  const bool counts_tokens_;  // some penalty is on

  int32_t output_tokens_ = 0;
  std::vector<kernels::PenalizedToken> penalized_;
  absl::flat_hash_map<int32_t, size_t> penalized_index_;
};

}  // namespace baton::decode_worker
