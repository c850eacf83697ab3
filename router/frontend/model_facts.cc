#include "router/frontend/model_facts.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::router::frontend {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxContextTokens = int64_t{1} << 24;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

absl::StatusOr<Json> ParseObject(absl::string_view text,
                                 absl::string_view what) {
  // Without exceptions nlohmann answers "discarded".
  Json json = Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                          /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected a JSON object"));
  }
  return json;
}

absl::StatusOr<int64_t> Count(const Json& json, const char* field,
                              int64_t most) {
  const auto it = json.find(field);
  if (it == json.end() || !it->is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: '", field, "' is missing or no integer"));
  }
  const auto value = it->get<int64_t>();
  if (value < 1 || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: '", field, "' is ", value, ", expected 1 to ", most));
  }
  return value;
}

absl::Status ReadFloat(const Json& json, const char* field, float* out) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation_config.json: '", field, "' is no number"));
  }
  *out = it->get<float>();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::ostringstream text;
  text << file.rdbuf();
  std::string out = std::move(text).str();
  if (out.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", out.size(), " bytes, expected at most ", kMaxConfigBytes));
  }
  return out;
}

}  // namespace

absl::StatusOr<ModelFacts> ParseModelFacts(absl::string_view config,
                                           absl::string_view generation) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(config, "config.json"));
  ModelFacts facts;
  ASSIGN_OR_RETURN(const int64_t vocab,
                   Count(json, "vocab_size", kMaxVocabulary));
  facts.vocab_size = static_cast<int32_t>(vocab);
  ASSIGN_OR_RETURN(facts.context_tokens,
                   Count(json, "max_position_embeddings", kMaxContextTokens));
  if (generation.empty()) return facts;

  ASSIGN_OR_RETURN(const Json defaults,
                   ParseObject(generation, "generation_config.json"));
  RETURN_IF_ERROR(
      ReadFloat(defaults, "temperature", &facts.defaults.temperature));
  RETURN_IF_ERROR(ReadFloat(defaults, "top_p", &facts.defaults.top_p));
  const auto sample = defaults.find("do_sample");
  if (sample != defaults.end() && sample->is_boolean() &&
      !sample->get<bool>()) {
    facts.defaults.temperature = 0.0F;
  }
  request::SamplingParams probe = facts.defaults;
  probe.max_tokens = 1;
  RETURN_IF_ERROR(Annotate(request::ValidateSampling(probe, facts.vocab_size),
                           "generation_config.json"));
  return facts;
}

absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& model_dir) {
  ASSIGN_OR_RETURN(const std::string config,
                   ReadFile(absl::StrCat(model_dir, "/config.json")));
  std::string generation;
  absl::StatusOr<std::string> file =
      ReadFile(absl::StrCat(model_dir, "/generation_config.json"));
  if (file.ok()) {
    generation = *std::move(file);
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  }
  absl::StatusOr<ModelFacts> facts = ParseModelFacts(config, generation);
  if (!facts.ok()) return Annotate(facts.status(), model_dir);
  return facts;
}

}  // namespace baton::router::frontend
