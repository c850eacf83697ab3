// The attention sub-layer over all spans of a step (model.md 5.6 to 5.11).
#pragma once

#include <cstdint>
#include <vector>

#include "common/checkpoint/model_config.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"
#include "common/model/model_weights.h"
#include "kernels/include/compressor.h"
#include "kernels/include/indexer.h"
#include "kernels/include/parallel.h"
#include "kernels/include/row_layout.h"

namespace baton::model {

// Owns the workspace of attention, sized once for the largest step. Each step:
// BeginStep, then RunLayer for every layer in order.
//
// Window rows of the step's own tokens are read from a scratch in the row
// encoding, older ones from the ring, and the ring is written after attention:
// a chunk longer than the ring would overwrite rows that its early queries
// still read (hazards.md P15).
class Attention final {
 public:
  Attention(const checkpoint::ModelConfig& config, const ModelOptions& options,
            kernels::Parallel* parallel);

  void BeginStep(const StepInputs& inputs, kv::KvStore* store);
  // x [tokens, D] normed input, y [tokens, D] output.
  void RunLayer(int32_t layer, const LayerLinears& weights, const float* x,
                float* y);

 private:
  // cos and sin per token or row, [n, rotary_dim / 2].
  struct Angles {
    std::vector<float> cosines;
    std::vector<float> sines;
  };
  // The rows of one ratio that this step completes.
  struct NewRows {
    int32_t ratio = 0;
    int32_t count = 0;
    std::vector<int32_t> span_begin;  // [spans + 1] first flat row of a span
    std::vector<int32_t> span;        // [count]
    std::vector<int64_t> row;         // [count]
    std::vector<int64_t> position;    // [count] rotary position
    Angles angles;
  };
  // What one compressor of a layer works on.
  struct CompressorCall {
    const CompressorLinears* weights = nullptr;
    kernels::CompressorKind kind = kernels::CompressorKind::kOverlap;
    int32_t dim = 0;
    kv::Region rows;
    kv::Region tail;
    const float* kv = nullptr;    // [tokens, width]
    const float* gate = nullptr;  // [tokens, width]
    float* pooled = nullptr;      // [new rows, dim]
    bool rotate = false;          // Hadamard
    kernels::RowEncoding encoding = kernels::RowEncoding::kF32;
  };

  void BeginNewRows(NewRows* rows);
  void ComputeAngles(const std::vector<float>& frequencies,
                     const int64_t* positions, int32_t count, Angles* angles);
  void Rope(float* x, int32_t heads, int32_t head_dim, const Angles& angles,
            bool inverse);
  void Project(const LayerLinears& weights, const float* x);
  void Compress(const CompressorCall& call, const NewRows& rows);
  void SelectRows(int32_t layer);
  void ListRows(int32_t layer, int32_t ratio);
  void WriteWindow(int32_t layer);
  kernels::RowLayout PageLayout(kv::Region region, int32_t span) const;
  int64_t VisibleRows(int32_t token, int32_t ratio) const;

  const checkpoint::ModelConfig config_;
  const kv::StateFormat format_;
  const int32_t top_k_;
  kernels::Parallel* const parallel_;
  const kernels::RowEncoding kv_encoding_;
  const kernels::RowEncoding index_encoding_;
  const int64_t kv_row_bytes_;
  std::vector<float> plain_frequencies_;
  std::vector<float> compressed_frequencies_;

  const StepInputs* inputs_ = nullptr;
  kv::KvStore* store_ = nullptr;
  int32_t tokens_ = 0;
  Angles plain_angles_;
  Angles compressed_angles_;
  NewRows new_rows_4_;
  NewRows new_rows_128_;

  // Workspace; first dimension max_step_tokens unless said.
  std::vector<float> qr_;              // [q_lora]
  std::vector<float> q_;               // [heads, head_dim]
  std::vector<float> kv_;              // [head_dim]
  std::vector<float> compress_kv_;     // [2 head_dim]
  std::vector<float> compress_gate_;   // [2 head_dim]
  std::vector<float> index_kv_;        // [2 index_head_dim]
  std::vector<float> index_gate_;      // [2 index_head_dim]
  std::vector<float> index_q_;         // [index heads, index_head_dim]
  std::vector<float> index_weights_;   // [index heads]
  std::vector<float> pooled_;          // [new rows, head_dim]
  std::vector<float> index_pooled_;    // [new rows, index_head_dim]
  std::vector<float> o_;               // [heads, head_dim]
  std::vector<float> u_;               // [groups, o_lora]
  std::vector<std::byte> chunk_rows_;  // encoded window rows of the step
  std::vector<float> scores_;          // several queries' visible rows
  std::vector<int32_t> selected_;      // [top_k]
  std::vector<kernels::IndexerQuery> queries_;
  std::vector<kernels::CompressorSpan> spans_;  // [max_step_spans]
  std::vector<const void*> row_pointers_;       // rows of all tokens, in order
  std::vector<int64_t> row_begin_;              // [max_step_tokens + 1]
};

}  // namespace baton::model
