// The backbone's tensors, grouped as the forward pass uses them, borrowed from
// mapped files. Plain data: copy freely, but the Checkpoint must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/expected_tensors.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"

namespace baton::checkpoint {

// A matrix [rows, cols], row-major; formulas of the encodings in model.md 3.7.
// Encodings 0..5 are those of kernels/include/linear.h, in the same order.
struct LinearTensor {
  Encoding encoding = Encoding::kF32;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // null for kF32 and kBf16
  float global_scale = 1.0f;          // kNvfp4: weight_scale_2
  float input_scale = 1.0f;           // kNvfp4, for FP4 activations only
  int32_t rows = 0;                   // outputs
  int32_t cols = 0;                   // inputs: values, not bytes
};

// A norm weight [size], BF16 or F32.
struct VectorTensor {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int32_t size = 0;

  // Value i as fp32 (exact).
  float at(int32_t i) const;
};

// One mHC mixer (model.md 5.2).
struct HyperConnectionWeights {
  absl::Span<const float> fn;    // [hc * (2 + hc), hc * hidden], head: [hc, ..]
  absl::Span<const float> base;  // [hc * (2 + hc)], head: [hc]
  absl::Span<const float> scale;  // [3], head: [1]
};

// ratio 4: width 2 * d (half A, half B); ratio 128: width d.
struct CompressorWeights {
  absl::Span<const float> ape;  // [ratio, width]
  LinearTensor wkv;             // [width, hidden]
  LinearTensor wgate;           // [width, hidden]
  VectorTensor norm;            // [d]
};

struct IndexerWeights {
  LinearTensor wq_b;          // [index heads * index dim, q_lora]
  LinearTensor weights_proj;  // [index heads, hidden]
  CompressorWeights compressor;
};

struct AttentionWeights {
  absl::Span<const float> sink;  // [heads]
  LinearTensor wq_a;             // [q_lora, hidden]
  VectorTensor q_norm;           // [q_lora]
  LinearTensor wq_b;             // [heads * head_dim, q_lora]
  LinearTensor wkv;              // [head_dim, hidden]
  VectorTensor kv_norm;          // [head_dim]
  LinearTensor wo_a;  // [groups * o_lora, heads / groups * head_dim], grouped
  LinearTensor wo_b;  // [hidden, groups * o_lora]
  std::optional<CompressorWeights> compressor;  // ratio 4 and 128
  std::optional<IndexerWeights> indexer;        // ratio 4
};

struct SwigluWeights {
  LinearTensor w1;  // gate [width, hidden]
  LinearTensor w2;  // down [hidden, width]
  LinearTensor w3;  // up   [width, hidden]
};

struct FeedForwardWeights {
  LinearTensor gate;                   // [experts, hidden]
  absl::Span<const float> gate_bias;   // [experts]; empty when hash-routed
  absl::Span<const int64_t> tid2eid;   // [vocab, top k]; empty otherwise
  std::vector<SwigluWeights> experts;  // n_routed_experts
  SwigluWeights shared;
};

struct LayerWeights {
  int32_t ratio = 0;  // 0, 4 or 128
  bool hash_routed = false;
  HyperConnectionWeights hc_attn;
  HyperConnectionWeights hc_ffn;
  VectorTensor attn_norm;  // [hidden]
  VectorTensor ffn_norm;   // [hidden]
  AttentionWeights attn;
  FeedForwardWeights ffn;
};

struct CheckpointWeights {
  LinearTensor embed;              // [vocab, hidden]
  LinearTensor head;               // [vocab, hidden]
  VectorTensor norm;               // [hidden]
  HyperConnectionWeights hc_head;  // fn [hc, hc * hidden], base [hc], scale [1]
  std::vector<LayerWeights> layers;
};

// Tensors of all files by name.
using TensorMap = absl::flat_hash_map<absl::string_view, const TensorView*>;

// What BindWeights found.
struct WeightCensus {
  int64_t backbone_tensors = 0;
  int64_t backbone_bytes = 0;
  int64_t drafter_tensors = 0;  // mtp.*: not read
  int64_t drafter_bytes = 0;
  // Modules by role and encoding: [role][encoding].
  int32_t modules[5][kNumEncodings] = {};
  int32_t nvfp4_projections = 0;
  int32_t nvfp4_power_of_two = 0;  // of those, weight_scale_2 is 2^k

  // The loss-free transcoding of MXFP4 experts gives powers of two only, any
  // other quantiser almost never (model.md 3.5).
  bool nvfp4_is_lossless_cast() const {
    return nvfp4_projections > 0 && nvfp4_power_of_two == nvfp4_projections;
  }
};

struct BindOptions {
  // Also scan weights that have no bad codes in a sound file (F8_E4M3, BF16 and
  // F32 matrices). Scales, norms, biases, tables and all other float32 data are
  // always scanned.
  bool scan_matrices = true;
};

// Finds every expected tensor exactly once, with the dtype and shape of the
// encoding that its weight shows, and checks values. Errors name the tensor:
// FailedPrecondition for a missing or unexpected tensor, a dtype, shape or
// scale layout that the module may not have, or w1 and w3 of an expert that
// cannot share one product (other encoding or weight_scale_2); DataLoss for
// NaN, infinity, non-positive scales and expert ids out of range. Tensors below
// "mtp." are counted and ignored.
absl::StatusOr<CheckpointWeights> BindWeights(const ModelConfig& config,
                                              const TensorMap& tensors,
                                              const BindOptions& options,
                                              WeightCensus* census);

}  // namespace baton::checkpoint
