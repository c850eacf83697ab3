#include "common/checkpoint/generation_config.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/field_reader.h"

namespace baton::checkpoint {

GenerationConfig DefaultGenerationConfig(const ModelConfig& model) {
  GenerationConfig config;
  config.eos_token_ids = model.eos_token_ids;
  return config;
}

absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const nlohmann::json& json, const ModelConfig& model,
    absl::string_view what) {
  FieldReader fields(json, what);
  GenerationConfig config = DefaultGenerationConfig(model);
  if (fields.Has("do_sample")) {
    const nlohmann::json& value = json["do_sample"];
    if (value.is_boolean()) {
      config.do_sample = value.get<bool>();
    } else {
      fields.Fail("do_sample", "expected true or false");
    }
  }
  if (fields.Has("temperature")) {
    config.temperature =
        fields.Number("temperature", 0, 100, /*low_included=*/true);
  }
  if (fields.Has("top_p")) config.top_p = fields.Number("top_p", 0, 1);
  if (fields.Has("eos_token_id")) {
    config.eos_token_ids = fields.Ints("eos_token_id", 0, model.vocab_size - 1,
                                       /*single_allowed=*/true);
  }
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace baton::checkpoint
