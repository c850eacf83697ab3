#include "decode_worker/engine/sample.h"

#include <algorithm>
#include <utility>

namespace baton::decode_worker {

using request::FinishReason;

Sample::Sample(Config config)
    : params_(config.sampler.params),
      end_ids_(config.sampler.end_ids),
      index_(config.sampler.sample_index),
      memory_(std::move(config.memory)),
      state_{.blocks = memory_.blocks,
             .slot = memory_.slot,
             .processed = config.prompt_tokens},
      sampler_(config.sampler) {
  if (config.stop_set != nullptr && !config.stop_set->empty()) {
    gate_.emplace(config.vocabulary, std::move(config.stop_set),
                  params_->min_tokens);
  }
}

std::optional<SampleEnd> Sample::EndOf(int32_t id) const {
  if (std::find(end_ids_->begin(), end_ids_->end(), id) != end_ids_->end()) {
    return SampleEnd{.reason = FinishReason::kStop, .silent_last_token = true};
  }
  if (sampler_.output_tokens() >= params_->max_tokens) {
    return SampleEnd{.reason = FinishReason::kLength};
  }
  return std::nullopt;
}

Sample::Outcome Sample::Advance(absl::Span<const float> logits,
                                kernels::SamplingScratch* scratch,
                                RequestOutput* output) {
  OutputToken token = sampler_.Next(logits, scratch);
  if (token.id < 0) return Outcome::kNoCandidate;
  const int32_t id = token.id;
  next_token_ = id;
  std::optional<SampleEnd> end = EndOf(id);
  if (!gate_.has_value()) {
    output->Append(index_, absl::MakeSpan(&token, 1), end);
    ended_ = end.has_value();
    return ended_ ? Outcome::kEnded : Outcome::kContinues;
  }

  held_.push_back(std::move(token));
  StopGate::Result result;
  // A token that ends the sample by its id has no text to match.
  const bool silent = end.has_value() && end->silent_last_token;
  if (!silent) result = gate_->Push(id);
  if (result.matched) {
    end = SampleEnd{.reason = FinishReason::kStop,
                    .text_bytes = result.text_bytes};
  } else if (end.has_value()) {
    result.safe_tokens = gate_->Finish().safe_tokens + (silent ? 1 : 0);
  }
  const size_t count =
      static_cast<size_t>(result.safe_tokens - delivered_tokens_);
  if (count > 0 || end.has_value()) {
    output->Append(index_, absl::MakeSpan(held_).first(count), end);
    held_.erase(held_.begin(),
                held_.begin() + static_cast<std::ptrdiff_t>(count));
    delivered_tokens_ = result.safe_tokens;
  }
  ended_ = end.has_value();
  return ended_ ? Outcome::kEnded : Outcome::kContinues;
}

}  // namespace baton::decode_worker
