#include "common/model/compute_policy.h"

#include "absl/strings/str_cat.h"

namespace baton::model {

std::string ComputePolicy::ToString() const {
  return absl::StrCat("preset=exact index_topk=", index_topk);
}

absl::StatusOr<ComputePolicy> ComputePolicyFromName(absl::string_view name) {
  if (name == "exact") return ComputePolicy{.preset = PolicyPreset::kExact};
  return absl::InvalidArgumentError(absl::StrCat(
      "compute policy '", name, "' is unknown; expected one of: exact"));
}

}  // namespace baton::model
