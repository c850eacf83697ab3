// Which shards a checkpoint folder has and what the index says about them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/safetensors.h"

namespace baton::checkpoint {

// A name inside the folder: not empty, no '/', no NUL, not "." or "..".
bool IsPlainFileName(absl::string_view name);

// Opens all shards of `dir`, in order of names, and checks them against
// model.safetensors.index.json in both directions. Without the index: the one
// .safetensors file. Errors as Checkpoint::Open's.
absl::StatusOr<std::vector<std::unique_ptr<SafetensorsFile>>> OpenShards(
    absl::string_view dir);

}  // namespace baton::checkpoint
