// Attention of one shared K = V head over a list of cached rows, with a sink
// (model.md 5.8).
//
// For query token t and head h, rows r = 0 .. count(t) - 1 of its list:
//   s[r] = (q[t, h] . row[r]) * scale;  M = max_r s[r];  p[r] = exp(s[r] - M)
//   out[t, h] = sum_r p[r] * row[r] / (sum_r p[r] + exp(sink[h] - M))
// No rows: out = 0. The sink is in the denominator only and not part of M.
//
// Rows are given by address, so that window rows (ring slots), rows of the
// current chunk and compressed rows of pages can be mixed, and tokens of
// different sequences share a call: row r of token t is
// rows[row_begin[t] + r], r < row_begin[t + 1] - row_begin[t]. Each is `dim`
// values in `encoding`, no alignment needed. Nothing else is read.
//
// Order (list order is part of the result's bits): dots as in linear.h; the
// denominator in 16 lanes (r % 16) folded 8, 4, 2, 1, then the sink; values
// summed with FMA in list order, then one division. Contract: Cpu within
// (dim / 16 + count + 32) * 2^-24 * (1 + max|s|) * max|row| of Ref (double);
// bits independent of batch and threads (kernels_sparse_attention_test).
// Uses a scratch buffer per thread that grows to heads-per-task * count.
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"
#include "kernels/include/row_layout.h"

namespace baton::kernels {

struct SparseAttentionParams {
  const float* q = nullptr;  // [tokens, heads, dim]
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  float* out = nullptr;  // [tokens, heads, dim]; must not overlap q
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
  const void* const* rows = nullptr;   // [row_begin[tokens]]
  const int64_t* row_begin = nullptr;  // [tokens + 1], ascending
  RowEncoding encoding = RowEncoding::kF32;
  const float* sink = nullptr;  // [heads]
  int32_t tokens = 0;
  int32_t heads = 0;
  int32_t dim = 0;
  float scale = 1.0f;  // dim^-0.5
};

void SparseAttentionRef(const SparseAttentionParams& params);
void SparseAttentionCpu(const SparseAttentionParams& params,
                        Parallel& parallel);

}  // namespace baton::kernels
