// generation_config.json: the checkpoint's sampling defaults (model.md 2, 8.3).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/model_config.h"

namespace baton::checkpoint {

// Defaults hold where the file or a key is absent.
struct GenerationConfig {
  bool do_sample = true;
  double temperature = 1.0;  // [0, 100]
  double top_p = 1.0;        // (0, 1]
  // Ids that end an output; the config's when the file names none.
  std::vector<int32_t> eos_token_ids;
};

// InvalidArgument that names the key. Unlisted keys are ignored.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const nlohmann::json& json, const ModelConfig& model,
    absl::string_view what);

// The values for a checkpoint without the file.
GenerationConfig DefaultGenerationConfig(const ModelConfig& model);

}  // namespace baton::checkpoint
