#include "common/checkpoint/expected_tensors.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::checkpoint {
namespace {

constexpr int64_t kFp8Tile = 128;
constexpr int64_t kMxfp4Block = 32;
constexpr int64_t kNvfp4Block = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Appends modules below one prefix.
class Builder {
 public:
  Builder(absl::string_view prefix, std::vector<Module>* out)
      : prefix_(prefix), out_(out) {}
  void Add(Role role, absl::string_view name, std::vector<int64_t> shape) {
    out_->push_back(
        Module{absl::StrCat(prefix_, name), role, std::move(shape)});
  }

 private:
  const std::string prefix_;
  std::vector<Module>* const out_;
};

void AddHyperConnection(const ModelConfig& c, Builder& b) {
  const int64_t mix = static_cast<int64_t>(c.hc_mult) * (2 + c.hc_mult);
  const int64_t width = static_cast<int64_t>(c.hc_mult) * c.hidden_size;
  for (const absl::string_view part : {"hc_attn_", "hc_ffn_"}) {
    b.Add(Role::kFloat, absl::StrCat(part, "fn"), {mix, width});
    b.Add(Role::kFloat, absl::StrCat(part, "base"), {mix});
    b.Add(Role::kFloat, absl::StrCat(part, "scale"), {3});
  }
}

// A C4 compressor pools two overlapping halves, so it projects to twice the
// width (model.md 5.10).
void AddCompressor(const ModelConfig& c, absl::string_view name, int32_t ratio,
                   int64_t width, Builder& b) {
  const int64_t projected = ratio == 4 ? 2 * width : width;
  b.Add(Role::kFloat, absl::StrCat(name, ".ape"), {ratio, projected});
  b.Add(Role::kDense, absl::StrCat(name, ".wkv"), {projected, c.hidden_size});
  b.Add(Role::kDense, absl::StrCat(name, ".wgate"), {projected, c.hidden_size});
  b.Add(Role::kDense, absl::StrCat(name, ".norm"), {width});
}

void AddAttention(const ModelConfig& c, int32_t ratio, Builder& b) {
  const int64_t hidden = c.hidden_size;
  const int64_t heads_width =
      static_cast<int64_t>(c.num_attention_heads) * c.head_dim;
  const int64_t out_width = static_cast<int64_t>(c.o_groups) * c.o_lora_rank;
  b.Add(Role::kFloat, "attn.attn_sink", {c.num_attention_heads});
  b.Add(Role::kLinear, "attn.wq_a", {c.q_lora_rank, hidden});
  b.Add(Role::kDense, "attn.q_norm", {c.q_lora_rank});
  b.Add(Role::kLinear, "attn.wq_b", {heads_width, c.q_lora_rank});
  b.Add(Role::kLinear, "attn.wkv", {c.head_dim, hidden});
  b.Add(Role::kDense, "attn.kv_norm", {c.head_dim});
  b.Add(Role::kLinear, "attn.wo_a", {out_width, heads_width / c.o_groups});
  b.Add(Role::kLinear, "attn.wo_b", {hidden, out_width});
  if (ratio == 0) return;
  AddCompressor(c, "attn.compressor", ratio, c.head_dim, b);
  if (ratio != 4) return;
  const int64_t index_width =
      static_cast<int64_t>(c.index_n_heads) * c.index_head_dim;
  b.Add(Role::kLinear, "attn.indexer.wq_b", {index_width, c.q_lora_rank});
  b.Add(Role::kDense, "attn.indexer.weights_proj", {c.index_n_heads, hidden});
  AddCompressor(c, "attn.indexer.compressor", ratio, c.index_head_dim, b);
}

void AddFeedForward(const ModelConfig& c, bool hash_routed, Builder& b) {
  const int64_t hidden = c.hidden_size;
  const int64_t width = c.moe_intermediate_size;
  b.Add(Role::kDense, "ffn.gate", {c.n_routed_experts, hidden});
  if (hash_routed) {
    b.Add(Role::kTable, "ffn.gate.tid2eid",
          {c.vocab_size, c.num_experts_per_tok});
  } else {
    b.Add(Role::kFloat, "ffn.gate.bias", {c.n_routed_experts});
  }
  const auto add_swiglu = [&](Role role, absl::string_view name) {
    b.Add(role, absl::StrCat(name, ".w1"), {width, hidden});
    b.Add(role, absl::StrCat(name, ".w2"), {hidden, width});
    b.Add(role, absl::StrCat(name, ".w3"), {width, hidden});
  };
  for (int32_t e = 0; e < c.n_routed_experts; ++e) {
    add_swiglu(Role::kExpert, absl::StrCat("ffn.experts.", e));
  }
  add_swiglu(Role::kLinear, "ffn.shared_experts");
}

struct WeightForm {
  DType dtype;
  int64_t values_per_byte;
  int64_t column_block;  // K must be a multiple of it
};

WeightForm FormOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return {DType::kF32, 1, 1};
    case Encoding::kBf16:
      return {DType::kBf16, 1, 1};
    case Encoding::kFp8BlockE8m0:
    case Encoding::kFp8BlockF32:
      return {DType::kF8E4M3, 1, 1};
    case Encoding::kMxfp4:
      return {DType::kI8, 2, kMxfp4Block};
    case Encoding::kNvfp4:
      return {DType::kU8, 2, kNvfp4Block};
    case Encoding::kI64:
      return {DType::kI64, 1, 1};
  }
  CHECK(false) << "encoding " << static_cast<int32_t>(encoding);
  return {};
}

}  // namespace

absl::string_view EncodingName(Encoding encoding) {
  static constexpr std::array<absl::string_view, kNumEncodings> kNames = {
      "F32",
      "BF16",
      "FP8 128x128 (E8M0 scales)",
      "FP8 128x128 (F32 scales)",
      "MXFP4",
      "NVFP4",
      "I64"};
  return kNames[static_cast<size_t>(encoding)];
}

std::string Module::WeightName() const {
  if (role == Role::kFloat || role == Role::kTable) return name;
  return absl::StrCat(name, ".weight");
}

int64_t TensorSpec::bytes() const {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t dim : shape) bytes *= dim;
  return bytes;
}

std::vector<Module> TopLevelModules(const ModelConfig& c) {
  std::vector<Module> out;
  Builder b("", &out);
  b.Add(Role::kDense, "embed", {c.vocab_size, c.hidden_size});
  b.Add(Role::kDense, "head", {c.vocab_size, c.hidden_size});
  b.Add(Role::kDense, "norm", {c.hidden_size});
  b.Add(Role::kFloat, "hc_head_fn",
        {c.hc_mult, static_cast<int64_t>(c.hc_mult) * c.hidden_size});
  b.Add(Role::kFloat, "hc_head_base", {c.hc_mult});
  b.Add(Role::kFloat, "hc_head_scale", {1});
  return out;
}

std::vector<Module> BlockModules(const ModelConfig& config,
                                 absl::string_view prefix, int32_t ratio,
                                 bool hash_routed) {
  std::vector<Module> out;
  Builder b(prefix, &out);
  AddHyperConnection(config, b);
  b.Add(Role::kDense, "attn_norm", {config.hidden_size});
  b.Add(Role::kDense, "ffn_norm", {config.hidden_size});
  AddAttention(config, ratio, b);
  AddFeedForward(config, hash_routed, b);
  return out;
}

std::vector<Module> BackboneModules(const ModelConfig& config) {
  std::vector<Module> out = TopLevelModules(config);
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    std::vector<Module> block =
        BlockModules(config, absl::StrCat("layers.", layer, "."),
                     config.ratio(layer), config.hash_routed(layer));
    out.insert(out.end(), std::make_move_iterator(block.begin()),
               std::make_move_iterator(block.end()));
  }
  return out;
}

bool Allowed(Role role, Encoding encoding) {
  switch (role) {
    case Role::kExpert:
      return encoding != Encoding::kI64;
    case Role::kLinear:
      return encoding == Encoding::kF32 || encoding == Encoding::kBf16 ||
             encoding == Encoding::kFp8BlockE8m0 ||
             encoding == Encoding::kFp8BlockF32;
    case Role::kDense:
      return encoding == Encoding::kF32 || encoding == Encoding::kBf16;
    case Role::kFloat:
      return encoding == Encoding::kF32;
    case Role::kTable:
      return encoding == Encoding::kI64;
  }
  return false;
}

absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const Module& module,
                                                  Encoding encoding) {
  if (!Allowed(module.role, encoding)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", module.name, "' cannot be stored as ", EncodingName(encoding)));
  }
  const WeightForm form = FormOf(encoding);
  std::vector<int64_t> shape = module.shape;
  if (shape.back() % form.column_block != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", module.name, "' has ", shape.back(), " columns, expected a ",
        "multiple of ", form.column_block, " for ", EncodingName(encoding)));
  }
  shape.back() /= form.values_per_byte;
  std::vector<TensorSpec> out;
  out.push_back({module.WeightName(), form.dtype, shape});

  const auto add = [&](absl::string_view suffix, DType dtype,
                       std::vector<int64_t> scale_shape) {
    out.push_back(
        {absl::StrCat(module.name, suffix), dtype, std::move(scale_shape)});
  };
  const int64_t rows = module.shape.front();
  const int64_t columns = module.shape.back();
  if (encoding == Encoding::kFp8BlockE8m0 ||
      encoding == Encoding::kFp8BlockF32) {
    add(".scale",
        encoding == Encoding::kFp8BlockE8m0 ? DType::kF8E8M0 : DType::kF32,
        {CeilDiv(rows, kFp8Tile), CeilDiv(columns, kFp8Tile)});
  } else if (encoding == Encoding::kMxfp4) {
    add(".scale", DType::kF8E8M0, {rows, columns / kMxfp4Block});
  } else if (encoding == Encoding::kNvfp4) {
    add(".weight_scale", DType::kF8E4M3, {rows, columns / kNvfp4Block});
    add(".weight_scale_2", DType::kF32, {});
    add(".input_scale", DType::kF32, {});
  }
  return out;
}

}  // namespace baton::checkpoint
