#include "decode_worker/engine/token_sampler.h"

#include <algorithm>

namespace baton::decode_worker {

TokenSampler::TokenSampler(const Config& config)
    : params_(config.params),
      end_ids_(config.end_ids),
      sample_index_(config.sample_index),
      top_logprobs_(config.top_logprobs),
      want_logprobs_(config.want_logprobs),
      counts_tokens_(params_->repetition_penalty != 1.0F ||
                     params_->presence_penalty != 0.0F ||
                     params_->frequency_penalty != 0.0F) {
  if (params_->repetition_penalty == 1.0F) return;
  // Only repetition looks at the prompt.
  for (const int32_t id : config.prompt_ids) {
    if (penalized_index_.try_emplace(id, penalized_.size()).second) {
      penalized_.push_back({.id = id, .output_count = 0});
    }
  }
}

void TokenSampler::Count(int32_t id) {
  ++output_tokens_;
  if (!counts_tokens_) return;
  const auto [it, added] = penalized_index_.try_emplace(id, penalized_.size());
  if (added) penalized_.push_back({.id = id, .output_count = 0});
  ++penalized_[it->second].output_count;
}

OutputToken TokenSampler::Next(absl::Span<const float> logits,
                               kernels::SamplingScratch* scratch) {
  const int32_t vocab = static_cast<int32_t>(logits.size());
  OutputToken token;
  token.top.resize(static_cast<size_t>(std::min(top_logprobs_, vocab)));
  const bool ban_ends = output_tokens_ < params_->min_tokens;
  const kernels::SamplingResult result = kernels::Sample({
      .logits = logits.data(),
      .vocab = vocab,
      .temperature = params_->temperature,
      .top_k = params_->top_k,
      .top_p = params_->top_p,
      .min_p = params_->min_p,
      .repetition_penalty = params_->repetition_penalty,
      .presence_penalty = params_->presence_penalty,
      .frequency_penalty = params_->frequency_penalty,
      .penalized = penalized_.data(),
      .num_penalized = static_cast<int32_t>(penalized_.size()),
      .banned_ids = ban_ends ? end_ids_->data() : nullptr,
      .num_banned = ban_ends ? static_cast<int32_t>(end_ids_->size()) : 0,
      .key = {.seed = params_->seed,
              .sample_index = static_cast<uint32_t>(sample_index_),
              .output_index = static_cast<uint32_t>(output_tokens_),
              .purpose = kernels::RandomPurpose::kSample},
      .num_top_logprobs = static_cast<int32_t>(token.top.size()),
      .top_logprobs = token.top.data(),
      .want_logprob = want_logprobs_,
      .scratch = scratch,
  });
  token.id = result.id;
  token.logprob = result.logprob;
  if (result.id >= 0) Count(result.id);
  return token;
}

}  // namespace baton::decode_worker
