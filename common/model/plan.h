// Lays spans out as StepInputs after checking them against the capacities.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model.h"

namespace baton::model {

struct PlanLimits {
  int32_t max_tokens = 0;
  int32_t max_spans = 0;
  int64_t max_positions = 0;
  int32_t vocab_size = 0;
};

// InvalidArgument names the span, what it asked for and the limit. No spans is
// a valid, empty step.
absl::StatusOr<StepInputs> PlanStep(absl::Span<const Span> spans,
                                    const PlanLimits& limits);

}  // namespace baton::model
