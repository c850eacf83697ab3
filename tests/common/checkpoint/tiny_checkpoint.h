// Checkpoints made in memory, damaged on purpose, and written to a folder.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/checkpoint/expected_tensors.h"
#include "common/checkpoint/model_config.h"

namespace baton::checkpoint {

// A folder that is removed with its contents at the end of the test.
class TempDir final {
 public:
  TempDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "baton_ckpt_XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr) << pattern;
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }

 private:
  std::string path_;
};

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  CHECK(file.good()) << path;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Header length, header, data: whatever the caller says, true or not.
inline std::string SafetensorsImage(uint64_t header_bytes,
                                    const std::string& header,
                                    const std::string& data) {
  std::string out(sizeof(header_bytes), '\0');
  std::memcpy(out.data(), &header_bytes, sizeof(header_bytes));
  return absl::StrCat(out, header, data);
}
inline std::string SafetensorsImage(const std::string& header,
                                    const std::string& data) {
  return SafetensorsImage(header.size(), header, data);
}

struct StoredTensor {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

// A well-formed image; larger elements first, so that all are aligned.
inline std::string ImageOf(const StoredTensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const int64_t width : {8, 4, 2, 1}) {
    for (const auto& [name, tensor] : tensors) {
      if (DTypeBytes(tensor.dtype) != width) continue;
      header[name] = {
          {"dtype", std::string(DTypeName(tensor.dtype))},
          {"shape", tensor.shape},
          {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  return SafetensorsImage(text, data);
}

// config.json of a three-layer model with one layer of each ratio; every width
// is small, and some are no multiple of 128, so FP8 tiles are cut at the edges.
inline nlohmann::json TinyConfigJson() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
    "vocab_size": 48, "hidden_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "qk_rope_head_dim": 16, "q_lora_rank": 32, "o_groups": 2,
    "o_lora_rank": 32, "sliding_window": 128, "compress_ratios": [0, 4, 128, 0],
    "index_n_heads": 2, "index_head_dim": 32, "index_topk": 8,
    "n_routed_experts": 3, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32,
                     "beta_slow": 1, "original_max_position_embeddings": 1024},
    "max_position_embeddings": 4096, "num_nextn_predict_layers": 1,
    "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1
  })");
}

inline ModelConfig TinyConfig() {
  absl::StatusOr<ModelConfig> config =
      ParseModelConfig(TinyConfigJson(), "tiny");
  CHECK_OK(config);
  return *std::move(config);
}

// Bytes that pass every check: weights a small pattern, scales 1.
inline std::string PlausibleBytes(const TensorSpec& spec) {
  std::string out(static_cast<size_t>(spec.bytes()), '\0');
  const auto put = [&out](size_t at, const auto& value) {
    std::memcpy(out.data() + at, &value, sizeof(value));
  };
  switch (spec.dtype) {
    case DType::kF32:
      for (size_t i = 0; i < out.size(); i += 4) put(i, 1.0f);
      break;
    case DType::kBf16:
      for (size_t i = 0; i < out.size(); i += 2) put(i, uint16_t{0x3f80});
      break;
    case DType::kF8E8M0:
      std::fill(out.begin(), out.end(), '\x7f');
      break;
    case DType::kF8E4M3:
      std::fill(out.begin(), out.end(), '\x38');
      break;
    default:  // I8, U8, I64: zeros are valid
      break;
  }
  return out;
}

// Every tensor of the tiny model, linears and experts stored as asked.
inline StoredTensors TinyTensors(Encoding linears, Encoding experts) {
  StoredTensors out;
  for (const Module& module : BackboneModules(TinyConfig())) {
    Encoding encoding = Encoding::kBf16;
    if (module.role == Role::kLinear) encoding = linears;
    if (module.role == Role::kExpert) encoding = experts;
    if (module.role == Role::kFloat) encoding = Encoding::kF32;
    if (module.role == Role::kTable) encoding = Encoding::kI64;
    const auto specs = TensorsOf(module, encoding);
    CHECK_OK(specs);
    for (const TensorSpec& spec : *specs) {
      out[spec.name] = {spec.dtype, spec.shape, PlausibleBytes(spec)};
    }
  }
  return out;
}

// Two shards with an index: names up to "layers.1" first.
struct TinyFiles {
  static constexpr char kFirst[] = "model-00001-of-00002.safetensors";
  static constexpr char kSecond[] = "model-00002-of-00002.safetensors";
};

inline nlohmann::json WriteTinyCheckpoint(const TempDir& dir,
                                          const nlohmann::json& config,
                                          const StoredTensors& tensors) {
  StoredTensors first;
  StoredTensors second;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [name, tensor] : tensors) {
    const bool is_first = name < "layers.1";
    (is_first ? first : second)[name] = tensor;
    weight_map[name] = is_first ? TinyFiles::kFirst : TinyFiles::kSecond;
  }
  WriteText(dir.File("config.json"), config.dump());
  WriteText(dir.File(TinyFiles::kFirst), ImageOf(first));
  WriteText(dir.File(TinyFiles::kSecond), ImageOf(second));
  const nlohmann::json index = {{"metadata", {{"total_size", 0}}},
                                {"weight_map", weight_map}};
  WriteText(dir.File("model.safetensors.index.json"), index.dump());
  return index;
}

}  // namespace baton::checkpoint
