// Indexer: scores cached index rows for a query and keeps the best
// (model.md 5.11).
//
//   score[w] = sum_h weights[h] * max(0, q[h] . k[w]),  w < visible_rows
//   selected = the min(top_k, visible_rows) rows with the largest score,
//   ties to the lowest row, written in ascending row order.
// When visible_rows <= top_k all rows are selected and nothing is scored.
// A NaN score ranks below every number; NaNs among themselves by row.
//
// Rows are fp32 or bf16, found through a RowLayout; rows >= visible_rows are
// never read. Order: q . k as in linear.h (16 lanes), heads ascending in fp32.
// Contract: scores within (dim / 16 + heads + 8) * 2^-24 * sum |w q k| of Ref
// (double); selection from given scores exact (kernels_indexer_test). Bits do
// not depend on batch, threads or page layout.
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"
#include "kernels/include/row_layout.h"

namespace baton::kernels {

struct IndexerQuery {
  const float* q = nullptr;        // [heads, dim]
  const float* weights = nullptr;  // [heads], scale factor included
  RowLayout rows;
  int64_t visible_rows = 0;
  float* scores = nullptr;      // workspace [visible_rows]; may be null when
                                // visible_rows <= top_k
  int32_t* selected = nullptr;  // [min(top_k, visible_rows)]
};

struct IndexerParams {
  const IndexerQuery* queries = nullptr;
  int32_t num_queries = 0;
  int64_t q_head_stride = 0;
  int32_t heads = 0;
  int32_t dim = 0;
  int32_t top_k = 0;
  RowEncoding encoding = RowEncoding::kF32;
};

void IndexerRef(const IndexerParams& params);
void IndexerCpu(const IndexerParams& params, Parallel& parallel);

// The selection alone: writes min(k, n) indices ascending and returns how many.
int32_t SelectTopK(const float* scores, int64_t n, int32_t k,
                   int32_t* selected);

}  // namespace baton::kernels
