// Compressor: pools (kvraw, g) of consecutive tokens into rows, streaming
// (model.md 5.10). Row w is produced when position ratio * (w + 1) - 1 is
// processed. Norm, rotary (at w * ratio) and encoding follow outside.
//
// g = gate + ape[position % ratio], added here. Per channel c:
//   kOverlap (ratio 4): row w = softmax over 8 slots of g . kvraw; slots 0-3
//   are
//     tokens 4(w-1) .. 4w-1 with channels [0, d), slots 4-7 tokens 4w .. 4w+3
//     with channels [d, 2d). Row 0 has slots 4-7 only. Input width 2d.
//   kOnline (ratio 128): row w = softmax over its `ratio` tokens of g . kvraw,
//     input width d, by one left-to-right recurrence.
//
// State, one per sequence and layer, fp32, owned by the caller, contents fixed
// by this header (it is what a hand-off moves):
//   kOverlap: ring of 2 * ratio tokens, [2 * ratio][2][2d]: token at index
//     position % (2 * ratio), first kvraw then g (ape included).
//     At a boundary N only the indices of positions in
//     [ratio * max(0, floor(N / ratio) - 1), N) are ever read again.
//   kOnline: [3][d] = max, sum, value (sum of exp(g - max) * kvraw); it is
//     restarted by the first token of each window, so its content is void when
//     N % ratio == 0.
// Nothing is read from the state that this sequence has not written: a fresh
// state needs no initialisation.
//
// Spans of different sequences may share a call; each needs its own state.
// Bits of a row depend on the sequence's tokens only, not on how they were cut
// into spans. Contract: Cpu within 2^-18 * max|kvraw| of Ref; chunking
// bit-exact (kernels_compressor_test, all N in 1..300).
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"

namespace baton::kernels {

enum class CompressorKind : uint8_t { kOverlap, kOnline };

// d -> input width of kvraw, g and ape.
constexpr int32_t CompressorWidth(CompressorKind kind, int32_t dim) {
  return kind == CompressorKind::kOverlap ? 2 * dim : dim;
}

// fp32 values of one state.
constexpr int64_t CompressorStateFloats(CompressorKind kind, int32_t ratio,
                                        int32_t dim) {
  return kind == CompressorKind::kOverlap
             ? int64_t{8} * ratio * dim  // 2 ratio x 2 x 2 dim
             : int64_t{3} * dim;
}

// Rows completed by tokens first_position .. first_position + num_tokens - 1;
// the first of them is row first_position / ratio.
constexpr int64_t CompressorRows(int64_t first_position, int64_t num_tokens,
                                 int32_t ratio) {
  return (first_position + num_tokens) / ratio - first_position / ratio;
}

struct CompressorSpan {
  const float* kv = nullptr;  // [num_tokens, width]
  int64_t kv_row_stride = 0;
  const float* gate = nullptr;  // [num_tokens, width], without ape
  int64_t gate_row_stride = 0;
  int64_t first_position = 0;
  int32_t num_tokens = 0;
  float* state = nullptr;   // CompressorStateFloats, updated
  float* pooled = nullptr;  // [CompressorRows(...), dim]; null if no rows
  int64_t pooled_row_stride = 0;
};

struct CompressorParams {
  CompressorKind kind = CompressorKind::kOverlap;
  int32_t ratio = 4;
  int32_t dim = 0;
  const float* ape = nullptr;  // [ratio, width]
  const CompressorSpan* spans = nullptr;
  int32_t num_spans = 0;
};

void CompressorRef(const CompressorParams& params);
void CompressorCpu(const CompressorParams& params, Parallel& parallel);

// The definition, for tests: pools a whole prompt from position 0 in double,
// with no state. Writes num_tokens / ratio rows.
struct CompressorOneShotParams {
  CompressorKind kind = CompressorKind::kOverlap;
  int32_t ratio = 4;
  int32_t dim = 0;
  const float* ape = nullptr;   // [ratio, width]
  const float* kv = nullptr;    // [num_tokens, width] contiguous
  const float* gate = nullptr;  // [num_tokens, width] contiguous
  int32_t num_tokens = 0;
  float* pooled = nullptr;  // [num_tokens / ratio, dim] contiguous
};
void CompressorOneShotRef(const CompressorOneShotParams& params);

}  // namespace baton::kernels
