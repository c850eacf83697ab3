// ComputePolicy: how cached state and logits are computed (design.md 5). It is
// advertised by each worker and need not match across a link.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model {

enum class PolicyPreset : uint8_t {
  kExact,  // fp32 activations, no simulated quantisation
};

struct ComputePolicy {
  PolicyPreset preset = PolicyPreset::kExact;
  // Rows a C4 query selects; the checkpoint's value unless overridden.
  int32_t index_topk = 0;

  std::string ToString() const;
};

// "exact" is the preset there is; another name is InvalidArgument with the
// list.
absl::StatusOr<ComputePolicy> ComputePolicyFromName(absl::string_view name);

}  // namespace baton::model
