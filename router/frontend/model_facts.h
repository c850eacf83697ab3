// What the router must know of the model: limits and defaults from config.json
// and generation_config.json of the checkpoint's folder. No weights.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/request/request.h"

namespace baton::router::frontend {

struct ModelFacts {
  int32_t vocab_size = 0;
  int64_t context_tokens = 0;  // positions a sequence may have
  // The checkpoint's temperature and top_p; the rest as SamplingParams.
  request::SamplingParams defaults;
};

// INVALID_ARGUMENT names the field and what was expected. `generation` may be
// empty: the checkpoint has none.
absl::StatusOr<ModelFacts> ParseModelFacts(absl::string_view config,
                                           absl::string_view generation);
// NOT_FOUND: no config.json there.
absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& model_dir);

}  // namespace baton::router::frontend
