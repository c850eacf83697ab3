// Checkpoint tensors as the operations of kernels/ take them.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/weights.h"
#include "kernels/include/experts.h"
#include "kernels/include/linear.h"

namespace baton::model {

struct HyperWeights {
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
};

struct CompressorLinears {
  const float* ape = nullptr;
  kernels::LinearWeight wkv;
  kernels::LinearWeight wgate;
  const uint16_t* norm = nullptr;  // bf16
};

struct IndexerLinears {
  kernels::LinearWeight wq_b;
  kernels::LinearWeight weights_proj;
  CompressorLinears compressor;
};

struct LayerLinears {
  int32_t ratio = 0;
  HyperWeights hc_attn;
  HyperWeights hc_ffn;
  const uint16_t* attn_norm = nullptr;
  const uint16_t* ffn_norm = nullptr;
  const float* sink = nullptr;
  kernels::LinearWeight wq_a;
  const uint16_t* q_norm = nullptr;
  kernels::LinearWeight wq_b;
  kernels::LinearWeight wkv;
  const uint16_t* kv_norm = nullptr;
  kernels::LinearWeight wo_a;
  kernels::LinearWeight wo_b;
  std::optional<CompressorLinears> compressor;
  std::optional<IndexerLinears> indexer;
  kernels::LinearWeight gate;
  const float* gate_bias = nullptr;  // null when hash-routed
  const int64_t* tid2eid = nullptr;  // null when routed by scores
  std::vector<kernels::ExpertWeights> experts;
  kernels::ExpertWeights shared;
};

// Everything points into the checkpoint, which must outlive this object, except
// norms stored as F32, which are copied.
struct ModelWeights {
  // FailedPrecondition when a norm is F32 with values that bf16 cannot hold.
  static absl::StatusOr<ModelWeights> FromCheckpoint(
      const checkpoint::CheckpointWeights& weights);

  // Bytes as stored of all weights, and of those that one token reads:
  // `experts_per_token` routed experts of each layer, one row of the embedding.
  int64_t TotalBytes() const;
  int64_t DecodeBytes(int32_t experts_per_token) const;

  kernels::LinearWeight embed;
  kernels::LinearWeight head;
  const uint16_t* norm = nullptr;
  HyperWeights hc_head;
  std::vector<LayerLinears> layers;

  // Norm and hyper-connection bytes; not recoverable from bare pointers.
  int64_t small_bytes = 0;
  std::list<std::vector<uint16_t>> converted_norms;  // stable addresses
};

}  // namespace baton::model
