// A DeepSeek-V4-Flash checkpoint folder: config.json, safetensors shards with
// their index, and generation_config.json if present. Native, NVFP4, FP8 and
// BF16 layouts are told apart by the tensors, module by module (model.md 3).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/generation_config.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/weights.h"

namespace baton::checkpoint {

struct OpenOptions {
  // Read every byte: scan all matrices, compute the content digest, and compare
  // each file with SHA256SUMS where the folder has one. Without it, contents
  // beyond digest.h's limit are mapped and not read, scales and small tensors
  // excepted.
  bool verify_content = false;
};

// Immutable after Open; any thread may read. Weights and views live as long as
// this object.
class Checkpoint final {
 public:
  // Opens and checks everything that safetensors.h, model_config.h and
  // weights.h list. The index must agree with the files both ways: each listed
  // tensor is in the file named for it, each tensor of each file is listed for
  // that file. Files are plain names inside the folder. Without an index the
  // folder must hold exactly one .safetensors file.
  //
  // NotFound: a file is missing. InvalidArgument: a malformed file.
  // FailedPrecondition: a sound file of another model. DataLoss: truncated
  // files, bad values, checksums that differ.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      absl::string_view dir, const OpenOptions& options = {});

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation_config() const {
    return generation_config_;
  }
  bool has_generation_config() const { return has_generation_config_; }
  const CheckpointWeights& weights() const { return weights_; }
  const WeightCensus& census() const { return census_; }
  // In order of their names.
  absl::Span<const std::unique_ptr<SafetensorsFile>> files() const {
    return files_;
  }
  // Bytes of all tensors, drafters included.
  int64_t tensor_bytes() const;
  // Identifies the model on links and in block hashes; see digest.h.
  const Sha256Digest& digest() const { return digest_; }
  // Set when opened with verify_content.
  const ContentCheck& content_check() const { return content_check_; }

 private:
  Checkpoint() = default;

  std::string dir_;
  ModelConfig config_;
  GenerationConfig generation_config_;
  bool has_generation_config_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  CheckpointWeights weights_;
  WeightCensus census_;
  Sha256Digest digest_ = {};
  ContentCheck content_check_;
};

}  // namespace baton::checkpoint
