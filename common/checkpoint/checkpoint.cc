#include "common/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_file.h"
#include "common/checkpoint/shard_index.h"

namespace baton::checkpoint {
namespace {

// Every tensor once: a name in two files is refused whoever lists it.
absl::StatusOr<TensorMap> MapTensors(
    absl::Span<const std::unique_ptr<SafetensorsFile>> files) {
  TensorMap out;
  for (const auto& file : files) {
    for (const TensorView& tensor : file->tensors()) {
      if (!out.emplace(tensor.name, &tensor).second) {
        return absl::FailedPreconditionError(
            absl::StrCat(file->path(), ": tensor '", tensor.name,
                         "' is also in another file"));
      }
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    absl::string_view dir, const OpenOptions& options) {
  auto out = std::unique_ptr<Checkpoint>(new Checkpoint());
  out->dir_ = std::string(dir);

  const std::string config_path = absl::StrCat(dir, "/config.json");
  ASSIGN_OR_RETURN(const nlohmann::json config_json, ReadJsonFile(config_path));
  ASSIGN_OR_RETURN(out->config_, ParseModelConfig(config_json, config_path));

  const std::string generation_path =
      absl::StrCat(dir, "/generation_config.json");
  struct stat info;
  out->has_generation_config_ = ::stat(generation_path.c_str(), &info) == 0;
  if (out->has_generation_config_) {
    ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(generation_path));
    ASSIGN_OR_RETURN(
        out->generation_config_,
        ParseGenerationConfig(json, out->config_, generation_path));
  } else {
    out->generation_config_ = DefaultGenerationConfig(out->config_);
  }

  ASSIGN_OR_RETURN(out->files_, OpenShards(dir));
  // Checksums before values: damage is then reported as damage.
  if (options.verify_content) {
    RETURN_IF_ERROR(CompareSums(dir, out->files_, &out->content_check_));
  }
  ASSIGN_OR_RETURN(const TensorMap tensors, MapTensors(out->files_));
  const DigestScope scope = ModelDigestScope(out->tensor_bytes());
  BindOptions bind;
  bind.scan_matrices =
      options.verify_content || scope == DigestScope::kAllBytes;
  absl::StatusOr<CheckpointWeights> weights =
      BindWeights(out->config_, tensors, bind, &out->census_);
  if (!weights.ok()) return Annotate(weights.status(), dir);
  out->weights_ = *std::move(weights);

  out->digest_ = DigestOf(out->config_, out->files_, scope);
  if (options.verify_content) {
    out->content_check_.done = true;
    out->content_check_.content_digest =
        scope == DigestScope::kAllBytes
            ? out->digest_
            : DigestOf(out->config_, out->files_, DigestScope::kAllBytes);
  }
  return out;
}

int64_t Checkpoint::tensor_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) {
    for (const TensorView& tensor : file->tensors()) bytes += tensor.bytes;
  }
  return bytes;
}

}  // namespace baton::checkpoint
