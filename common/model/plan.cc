#include "common/model/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::model {

namespace {

absl::Status CheckSpan(const Span& span, const PlanLimits& limits) {
  const auto n = static_cast<int64_t>(span.tokens.size());
  if (n == 0)
    return absl::InvalidArgumentError("no tokens; expected 1 or more");
  if (span.first_position < 0 ||
      span.first_position > limits.max_positions - n) {
    return absl::InvalidArgumentError(absl::StrCat(
        "positions ", span.first_position, " .. ", span.first_position + n - 1,
        "; expected within 0 .. ", limits.max_positions - 1));
  }
  if (span.sequence.slot < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", span.sequence.slot, "; expected 0 or more"));
  }
  const int32_t needed = kv::BlocksFor(span.first_position + n);
  if (static_cast<int64_t>(span.sequence.blocks.size()) < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a block table of ", span.sequence.blocks.size(), " blocks; ",
        span.first_position + n, " positions need ", needed));
  }
  for (int32_t i = 0; i < needed; ++i) {
    if (Index(span.sequence.blocks[static_cast<size_t>(i)]) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("no block at index ", i, " of the block table"));
    }
  }
  for (size_t i = 0; i < span.tokens.size(); ++i) {
    if (span.tokens[i] < 0 || span.tokens[i] >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", span.tokens[i], " at position ",
                       span.first_position + static_cast<int64_t>(i),
                       "; expected 0 .. ", limits.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

// Arrays at full capacity: their addresses and sizes do not depend on the step.
StepInputs EmptyStep(const PlanLimits& limits) {
  StepInputs in;
  const auto tokens = static_cast<size_t>(limits.max_tokens);
  const auto spans = static_cast<size_t>(limits.max_spans);
  in.max_blocks = kv::BlocksFor(limits.max_positions);
  in.token_ids.resize(tokens);
  in.positions.resize(tokens);
  in.span_of_token.resize(tokens);
  in.span_first.resize(spans);
  in.span_begin.resize(spans + 1);
  in.slots.resize(spans);
  in.block_tables.assign(spans * static_cast<size_t>(in.max_blocks), -1);
  in.logits_rows.resize(tokens);
  return in;
}

}  // namespace

absl::StatusOr<StepInputs> PlanStep(absl::Span<const Span> spans,
                                    const PlanLimits& limits) {
  if (spans.size() > static_cast<size_t>(limits.max_spans)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step of ", spans.size(), " spans; at most ", limits.max_spans));
  }
  StepInputs in = EmptyStep(limits);
  for (size_t s = 0; s < spans.size(); ++s) {
    const Span& span = spans[s];
    if (const absl::Status status = CheckSpan(span, limits); !status.ok()) {
      return Annotate(status, absl::StrCat("span ", s));
    }
    if (std::find(in.slots.begin(), in.slots.begin() + static_cast<int64_t>(s),
                  span.sequence.slot) !=
        in.slots.begin() + static_cast<int64_t>(s)) {
      return absl::InvalidArgumentError(
          absl::StrCat("span ", s, ": slot ", span.sequence.slot,
                       " is in an earlier span of the step"));
    }
    const auto n = static_cast<int64_t>(span.tokens.size());
    if (in.num_tokens + n > limits.max_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("span ", s, ": a step of ", in.num_tokens + n,
                       " tokens; at most ", limits.max_tokens));
    }
    in.span_first[s] = span.first_position;
    in.span_begin[s] = in.num_tokens;
    in.slots[s] = span.sequence.slot;
    const auto blocks =
        static_cast<size_t>(kv::BlocksFor(span.first_position + n));
    for (size_t b = 0; b < blocks; ++b) {
      in.block_tables[s * static_cast<size_t>(in.max_blocks) + b] =
          Index(span.sequence.blocks[b]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const auto flat = static_cast<size_t>(in.num_tokens);
      in.token_ids[flat] = span.tokens[static_cast<size_t>(i)];
      in.positions[flat] = span.first_position + i;
      in.span_of_token[flat] = static_cast<int32_t>(s);
      if (span.logits == LogitsWanted::kAll ||
          (span.logits == LogitsWanted::kLast && i == n - 1)) {
        in.logits_rows[static_cast<size_t>(in.num_logits++)] = in.num_tokens;
      }
      ++in.num_tokens;
    }
  }
  in.num_spans = static_cast<int32_t>(spans.size());
  in.span_begin[spans.size()] = in.num_tokens;
  return in;
}

}  // namespace baton::model
