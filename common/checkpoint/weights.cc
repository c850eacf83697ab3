#include "common/checkpoint/weights.h"

#include <bit>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/tensor_values.h"

namespace baton::checkpoint {
namespace {

constexpr absl::string_view kDrafterPrefix = "mtp.";

// A module with its tensors found and checked.
struct BoundModule {
  Encoding encoding = Encoding::kF32;
  std::vector<int64_t> shape;
  const TensorView* weight = nullptr;
  const TensorView* scales = nullptr;
  float global_scale = 1.0f;
  float input_scale = 1.0f;
};

using BoundModules = absl::flat_hash_map<std::string, BoundModule>;

absl::Status Mismatch(absl::string_view tensor, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("tensor '", tensor, "': ", what));
}

// Finds, checks and counts the tensors of modules.
class Binder {
 public:
  Binder(const ModelConfig& config, const TensorMap& tensors,
         const BindOptions& options, WeightCensus* census)
      : config_(config),
        tensors_(tensors),
        options_(options),
        census_(*census) {}

  absl::StatusOr<BoundModules> BindAll();

 private:
  const TensorView* Find(absl::string_view name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : it->second;
  }
  absl::StatusOr<Encoding> Detect(const Module& module) const;
  absl::StatusOr<BoundModule> Bind(const Module& module);
  absl::Status CheckValues(const Module& module, const BoundModule& bound);
  absl::Status CheckNothingElse();

  const ModelConfig& config_;
  const TensorMap& tensors_;
  const BindOptions& options_;
  WeightCensus& census_;
  absl::flat_hash_set<absl::string_view> used_;
};

absl::StatusOr<Encoding> Binder::Detect(const Module& module) const {
  const std::string weight_name = module.WeightName();
  const TensorView* const weight = Find(weight_name);
  if (weight == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", weight_name, "' is missing"));
  }
  std::optional<Encoding> found;
  switch (weight->dtype) {
    case DType::kF32:
      found = Encoding::kF32;
      break;
    case DType::kBf16:
      found = Encoding::kBf16;
      break;
    case DType::kF8E4M3: {
      // A missing or odd scale is reported against the released layout.
      const TensorView* const scale = Find(absl::StrCat(module.name, ".scale"));
      found = scale != nullptr && scale->dtype == DType::kF32
                  ? Encoding::kFp8BlockF32
                  : Encoding::kFp8BlockE8m0;
      break;
    }
    case DType::kI8:
      found = Encoding::kMxfp4;
      break;
    case DType::kU8:
      found = Encoding::kNvfp4;
      break;
    case DType::kI64:
      found = Encoding::kI64;
      break;
    case DType::kF8E8M0:
    case DType::kF16:
    case DType::kI32:
      break;
  }
  if (!found.has_value() || !Allowed(module.role, *found)) {
    std::vector<std::string> expected;
    for (int32_t i = 0; i < kNumEncodings; ++i) {
      const Encoding encoding = static_cast<Encoding>(i);
      if (Allowed(module.role, encoding)) {
        expected.emplace_back(EncodingName(encoding));
      }
    }
    return Mismatch(
        weight_name,
        absl::StrCat("is ", Describe(weight->dtype, weight->shape),
                     ", expected one of: ", absl::StrJoin(expected, ", ")));
  }
  return *found;
}

absl::StatusOr<BoundModule> Binder::Bind(const Module& module) {
  ASSIGN_OR_RETURN(const Encoding encoding, Detect(module));
  absl::StatusOr<std::vector<TensorSpec>> specs = TensorsOf(module, encoding);
  if (!specs.ok()) {
    return absl::FailedPreconditionError(specs.status().message());
  }
  BoundModule bound;
  bound.encoding = encoding;
  bound.shape = module.shape;
  std::vector<const TensorView*> found;
  for (const TensorSpec& spec : *specs) {
    const TensorView* const tensor = Find(spec.name);
    if (tensor == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", spec.name, "' is missing: expected ",
                       Describe(spec.dtype, spec.shape),
                       " beside a weight stored as ", EncodingName(encoding)));
    }
    if (tensor->dtype != spec.dtype || tensor->shape != spec.shape) {
      return Mismatch(
          spec.name, absl::StrCat("is ", Describe(tensor->dtype, tensor->shape),
                                  " (", tensor->bytes, " bytes), expected ",
                                  Describe(spec.dtype, spec.shape), " (",
                                  spec.bytes(), " bytes)"));
    }
    used_.insert(tensor->name);
    found.push_back(tensor);
    ++census_.backbone_tensors;
    census_.backbone_bytes += tensor->bytes;
  }
  bound.weight = found[0];
  if (found.size() > 1) bound.scales = found[1];
  for (const TensorView* const tensor : found) {
    if (tensor != bound.weight) RETURN_IF_ERROR(CheckScales(*tensor));
  }
  if (encoding == Encoding::kNvfp4) {
    bound.global_scale = found[2]->As<float>()[0];
    bound.input_scale = found[3]->As<float>()[0];
    ++census_.nvfp4_projections;
    if (IsPowerOfTwo(bound.global_scale)) ++census_.nvfp4_power_of_two;
  }
  RETURN_IF_ERROR(CheckValues(module, bound));
  ++census_.modules[static_cast<size_t>(module.role)]
                   [static_cast<size_t>(encoding)];
  return bound;
}

absl::Status Binder::CheckValues(const Module& module,
                                 const BoundModule& bound) {
  if (module.role == Role::kTable) {
    return CheckIndices(*bound.weight, config_.n_routed_experts);
  }
  const bool is_matrix = module.role != Role::kFloat && module.shape.size() > 1;
  if (is_matrix && !options_.scan_matrices) return absl::OkStatus();
  return CheckFinite(*bound.weight);
}

absl::Status Binder::CheckNothingElse() {
  // The smallest name, so that the message does not depend on hash order.
  const TensorView* unexpected = nullptr;
  for (const auto& [name, tensor] : tensors_) {
    if (used_.contains(name)) continue;
    if (absl::StartsWith(name, kDrafterPrefix)) {
      ++census_.drafter_tensors;
      census_.drafter_bytes += tensor->bytes;
    } else if (unexpected == nullptr || name < unexpected->name) {
      unexpected = tensor;
    }
  }
  if (unexpected == nullptr) return absl::OkStatus();
  return Mismatch(
      unexpected->name,
      absl::StrCat("is ", Describe(unexpected->dtype, unexpected->shape),
                   ", expected no tensor of this name"));
}

absl::StatusOr<BoundModules> Binder::BindAll() {
  BoundModules out;
  for (const Module& module : BackboneModules(config_)) {
    ASSIGN_OR_RETURN(BoundModule bound, Bind(module));
    out.emplace(module.name, std::move(bound));
  }
  RETURN_IF_ERROR(CheckNothingElse());
  return out;
}

// Puts bound modules into the structs. Every name it asks for is one that
// BackboneModules gave, so a missing one is our bug.
class Assembler {
 public:
  explicit Assembler(const BoundModules& modules) : modules_(modules) {}

  LinearTensor Linear(absl::string_view name) const {
    const BoundModule& m = Get(name);
    LinearTensor out;
    out.encoding = m.encoding;
    out.data = m.weight->data;
    out.scales = m.scales == nullptr ? nullptr : m.scales->data;
    out.global_scale = m.global_scale;
    out.input_scale = m.input_scale;
    out.rows = static_cast<int32_t>(m.shape[0]);
    out.cols = static_cast<int32_t>(m.shape[1]);
    return out;
  }
  VectorTensor Vector(absl::string_view name) const {
    const BoundModule& m = Get(name);
    return {m.weight->dtype, m.weight->data, static_cast<int32_t>(m.shape[0])};
  }
  absl::Span<const float> Floats(absl::string_view name) const {
    return Get(name).weight->As<float>();
  }
  absl::Span<const int64_t> Table(absl::string_view name) const {
    return Get(name).weight->As<int64_t>();
  }
  HyperConnectionWeights Mixer(absl::string_view name) const {
    return {Floats(absl::StrCat(name, "_fn")),
            Floats(absl::StrCat(name, "_base")),
            Floats(absl::StrCat(name, "_scale"))};
  }
  CompressorWeights Compressor(absl::string_view name) const {
    return {Floats(absl::StrCat(name, ".ape")),
            Linear(absl::StrCat(name, ".wkv")),
            Linear(absl::StrCat(name, ".wgate")),
            Vector(absl::StrCat(name, ".norm"))};
  }
  SwigluWeights Swiglu(absl::string_view name) const {
    return {Linear(absl::StrCat(name, ".w1")),
            Linear(absl::StrCat(name, ".w2")),
            Linear(absl::StrCat(name, ".w3"))};
  }
  AttentionWeights Attention(absl::string_view prefix, int32_t ratio) const;
  LayerWeights Layer(const ModelConfig& config, int32_t layer) const;

 private:
  const BoundModule& Get(absl::string_view name) const {
    const auto it = modules_.find(name);
    CHECK(it != modules_.end()) << "module " << std::string(name);
    return it->second;
  }

  const BoundModules& modules_;
};

AttentionWeights Assembler::Attention(absl::string_view prefix,
                                      int32_t ratio) const {
  const auto name = [prefix](absl::string_view suffix) {
    return absl::StrCat(prefix, suffix);
  };
  AttentionWeights out;
  out.sink = Floats(name("attn_sink"));
  out.wq_a = Linear(name("wq_a"));
  out.q_norm = Vector(name("q_norm"));
  out.wq_b = Linear(name("wq_b"));
  out.wkv = Linear(name("wkv"));
  out.kv_norm = Vector(name("kv_norm"));
  out.wo_a = Linear(name("wo_a"));
  out.wo_b = Linear(name("wo_b"));
  if (ratio != 0) out.compressor = Compressor(name("compressor"));
  if (ratio == 4) {
    IndexerWeights indexer;
    indexer.wq_b = Linear(name("indexer.wq_b"));
    indexer.weights_proj = Linear(name("indexer.weights_proj"));
    indexer.compressor = Compressor(name("indexer.compressor"));
    out.indexer = indexer;
  }
  return out;
}

LayerWeights Assembler::Layer(const ModelConfig& config, int32_t layer) const {
  const std::string prefix = absl::StrCat("layers.", layer, ".");
  LayerWeights out;
  out.ratio = config.ratio(layer);
  out.hash_routed = config.hash_routed(layer);
  out.hc_attn = Mixer(absl::StrCat(prefix, "hc_attn"));
  out.hc_ffn = Mixer(absl::StrCat(prefix, "hc_ffn"));
  out.attn_norm = Vector(absl::StrCat(prefix, "attn_norm"));
  out.ffn_norm = Vector(absl::StrCat(prefix, "ffn_norm"));
  out.attn = Attention(absl::StrCat(prefix, "attn."), out.ratio);
  out.ffn.gate = Linear(absl::StrCat(prefix, "ffn.gate"));
  if (out.hash_routed) {
    out.ffn.tid2eid = Table(absl::StrCat(prefix, "ffn.gate.tid2eid"));
  } else {
    out.ffn.gate_bias = Floats(absl::StrCat(prefix, "ffn.gate.bias"));
  }
  for (int32_t e = 0; e < config.n_routed_experts; ++e) {
    out.ffn.experts.push_back(Swiglu(absl::StrCat(prefix, "ffn.experts.", e)));
  }
  out.ffn.shared = Swiglu(absl::StrCat(prefix, "ffn.shared_experts"));
  return out;
}

// w1 and w3 are one fused product in every fast path (model.md 3.5).
absl::Status CheckFusable(const CheckpointWeights& weights) {
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const std::vector<SwigluWeights>& experts =
        weights.layers[layer].ffn.experts;
    for (size_t e = 0; e < experts.size(); ++e) {
      const LinearTensor& w1 = experts[e].w1;
      const LinearTensor& w3 = experts[e].w3;
      const std::string name =
          absl::StrCat("layers.", layer, ".ffn.experts.", e, ".w3");
      if (w1.encoding != w3.encoding) {
        return Mismatch(absl::StrCat(name, ".weight"),
                        absl::StrCat("is stored as ", EncodingName(w3.encoding),
                                     ", expected ", EncodingName(w1.encoding),
                                     " as w1 is"));
      }
      if (w1.global_scale != w3.global_scale) {
        return Mismatch(absl::StrCat(name, ".weight_scale_2"),
                        absl::StrCat("is ", w3.global_scale, ", expected ",
                                     w1.global_scale, " as w1 has"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

float VectorTensor::at(int32_t i) const {
  CHECK(i >= 0 && i < size) << i << " of " << size;
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[i];
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

absl::StatusOr<CheckpointWeights> BindWeights(const ModelConfig& config,
                                              const TensorMap& tensors,
                                              const BindOptions& options,
                                              WeightCensus* census) {
  *census = WeightCensus();
  Binder binder(config, tensors, options, census);
  ASSIGN_OR_RETURN(const BoundModules modules, binder.BindAll());
  const Assembler assembler(modules);
  CheckpointWeights out;
  out.embed = assembler.Linear("embed");
  out.head = assembler.Linear("head");
  out.norm = assembler.Vector("norm");
  out.hc_head = assembler.Mixer("hc_head");
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    out.layers.push_back(assembler.Layer(config, layer));
  }
  RETURN_IF_ERROR(CheckFusable(out));
  return out;
}

}  // namespace baton::checkpoint
