#include "common/checkpoint/inspect.h"

#include <array>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace baton::checkpoint {
namespace {

constexpr std::array<absl::string_view, 5> kRoleNames = {
    "routed experts", "linears", "dense and norms", "float32 data",
    "routing tables"};

void AppendFiles(const Checkpoint& checkpoint, std::string* out) {
  absl::StrAppendFormat(out, "files: %d\n", checkpoint.files().size());
  for (const auto& file : checkpoint.files()) {
    absl::StrAppendFormat(out, "  %s: %d tensors, %d bytes\n", file->path(),
                          file->tensors().size(), file->image().size());
    if (file->realigned_bytes() > 0) {
      absl::StrAppendFormat(out, "    %d bytes copied: not aligned\n",
                            file->realigned_bytes());
    }
  }
}

void AppendDTypes(const Checkpoint& checkpoint, std::string* out) {
  std::array<int64_t, kNumDTypes> counts = {};
  std::array<int64_t, kNumDTypes> bytes = {};
  int64_t total = 0;
  for (const auto& file : checkpoint.files()) {
    for (const TensorView& tensor : file->tensors()) {
      const size_t i = static_cast<size_t>(tensor.dtype);
      ++counts[i];
      bytes[i] += tensor.bytes;
      ++total;
    }
  }
  absl::StrAppendFormat(out, "tensors: %d, %d bytes\n", total,
                        checkpoint.tensor_bytes());
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    absl::StrAppendFormat(out, "  %-8s %8d tensors %16d bytes\n",
                          DTypeName(static_cast<DType>(i)), counts[i],
                          bytes[i]);
  }
}

void AppendLayers(const Checkpoint& checkpoint, std::string* out) {
  // "ratio 4, routed by scores" -> layers
  std::map<std::string, std::vector<int32_t>> kinds;
  const ModelConfig& config = checkpoint.config();
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    kinds[absl::StrCat("ratio ", config.ratio(layer), ", routed by ",
                       config.hash_routed(layer) ? "token id" : "scores")]
        .push_back(layer);
  }
  absl::StrAppendFormat(out, "layers: %d\n", config.num_hidden_layers);
  for (const auto& [kind, layers] : kinds) {
    absl::StrAppendFormat(out, "  %s: %s\n", kind, absl::StrJoin(layers, " "));
  }
}

void AppendEncodings(const WeightCensus& census, std::string* out) {
  absl::StrAppend(out, "modules:\n");
  for (size_t role = 0; role < kRoleNames.size(); ++role) {
    for (size_t e = 0; e < kNumEncodings; ++e) {
      if (census.modules[role][e] == 0) continue;
      absl::StrAppendFormat(out, "  %s: %d as %s\n", kRoleNames[role],
                            census.modules[role][e],
                            EncodingName(static_cast<Encoding>(e)));
    }
  }
  if (census.nvfp4_projections > 0) {
    absl::StrAppendFormat(
        out, "  NVFP4 weight_scale_2: %d of %d are powers of two (%s)\n",
        census.nvfp4_power_of_two, census.nvfp4_projections,
        census.nvfp4_is_lossless_cast() ? "loss-free cast of MXFP4"
                                        : "requantised");
  }
}

}  // namespace

std::string CensusReport(const Checkpoint& checkpoint) {
  std::string out;
  absl::StrAppendFormat(&out, "checkpoint: %s\n", checkpoint.dir());
  AppendFiles(checkpoint, &out);
  AppendDTypes(checkpoint, &out);
  AppendLayers(checkpoint, &out);
  const WeightCensus& census = checkpoint.census();
  AppendEncodings(census, &out);
  absl::StrAppendFormat(&out, "backbone: %d tensors, %d bytes, complete\n",
                        census.backbone_tensors, census.backbone_bytes);
  absl::StrAppendFormat(&out,
                        "drafter (mtp.*, not used): %d tensors, %d bytes\n",
                        census.drafter_tensors, census.drafter_bytes);
  const GenerationConfig& generation = checkpoint.generation_config();
  absl::StrAppendFormat(
      &out, "generation defaults (%s): temperature %g, top_p %g, eos %s\n",
      checkpoint.has_generation_config() ? "generation_config.json"
                                         : "built in",
      generation.temperature, generation.top_p,
      absl::StrJoin(generation.eos_token_ids, " "));
  const bool all_bytes =
      ModelDigestScope(checkpoint.tensor_bytes()) == DigestScope::kAllBytes;
  absl::StrAppendFormat(&out, "model digest: %s (%s)\n",
                        HexOf(checkpoint.digest()),
                        all_bytes ? "config, headers and all bytes"
                                  : "config, headers and small tensors");
  const ContentCheck& check = checkpoint.content_check();
  if (check.done) {
    absl::StrAppendFormat(&out, "content digest: %s\n",
                          HexOf(check.content_digest));
    if (check.has_sums) {
      absl::StrAppendFormat(&out, "SHA256SUMS: %d files right\n",
                            check.files_compared);
    } else {
      absl::StrAppend(&out, "SHA256SUMS: none in the folder\n");
    }
  }
  return out;
}

}  // namespace baton::checkpoint
