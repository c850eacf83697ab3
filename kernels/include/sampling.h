// Sampling of one token from one row of logits.
//
// Order of the steps:
//   1. penalties on the raw logits, for each listed token:
//        repetition r: l > 0 ? l / r : l * r (listed prompt and output tokens)
//        frequency f:  l -= f * output_count;  presence q: l -= q if
//        output_count > 0
//   2. banned ids (min_tokens: the stop ids) become -infinity
//   3. temperature 0: the largest logit wins, ties to the lowest id. Else
//      p = softmax(l / temperature)
//   4. top_k (0 = off): the k most probable (ties to the lowest id)
//   5. top_p (1 = off): of those, renormalised, the shortest prefix in order of
//      probability whose sum reaches top_p; at least one
//   6. min_p (0 = off): of those, the ones with p >= min_p * (largest p)
//   7. one uniform from Philox4x32-10 keyed by (seed, sample index, output
//      index, purpose) picks from the rest, renormalised, in ascending id order
// NaN logits count as -infinity. If no logit is left, id = -1.
//
// logprob and the top-N are of the raw softmax: before step 1, temperature 1.
// Sums in double, ascending id. Temperatures down to the smallest double work.
// Deterministic: kernels_sampling_test (golden Philox, chi-square per filter).
#pragma once

#include <cstdint>
#include <vector>

namespace baton::kernels {

// What a random number is for; different purposes never share one.
enum class RandomPurpose : uint32_t {
  kSample = 0,
  kDraft = 1,
  kAccept = 2,
  kBonus = 3,
};

struct RandomKey {
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t output_index = 0;
  RandomPurpose purpose = RandomPurpose::kSample;
};

// The Philox4x32-10 block function (Salmon et al., 2011).
struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1);

// Uniform in the open interval (0, 1), 52 random bits.
double PhiloxUniform(const RandomKey& key);

struct PenalizedToken {
  int32_t id = 0;
  int32_t output_count = 0;  // 0: occurs in the prompt only
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
};

// Reused between calls so that a step allocates nothing once it has grown.
struct SamplingScratch {
  std::vector<float> logits;
  std::vector<double> weights;
  std::vector<int32_t> order;
};

struct SamplingParams {
  const float* logits = nullptr;  // [vocab], not changed
  int32_t vocab = 0;
  double temperature = 1.0;         // >= 0
  int32_t top_k = 0;                // >= 0
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1]
  double repetition_penalty = 1.0;  // > 0
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  const PenalizedToken* penalized = nullptr;  // distinct ids
  int32_t num_penalized = 0;
  const int32_t* banned_ids = nullptr;
  int32_t num_banned = 0;
  RandomKey key;
  int32_t num_top_logprobs = 0;          // <= vocab
  TokenLogprob* top_logprobs = nullptr;  // [num_top_logprobs], descending,
                                         // ties to the lowest id
  bool want_logprob = true;            // false: logprob is 0 and costs nothing
  SamplingScratch* scratch = nullptr;  // required
};

struct SamplingResult {
  int32_t id = -1;
  float logprob = 0.0f;  // of id under the raw softmax
};

SamplingResult Sample(const SamplingParams& params);

}  // namespace baton::kernels
