#include <bit>
#include <vector>

#include "kernels/include/indexer.h"
#include "kernels/indexer/indexer_check.h"
#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

// A 32-bit key that sorts as the scores do: NaN lowest, -0 equal to +0.
uint32_t SortKey(float score) {
  if (score != score) {
    return 0;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

int32_t SelectTopK(const float* scores, int64_t n, int32_t k,
                   int32_t* selected) {
  if (n <= k) {
    for (int64_t i = 0; i < n; ++i) {
      selected[i] = static_cast<int32_t>(i);
    }
    return static_cast<int32_t>(n);
  }
  // Radix selection of the k-th largest key, 8 bits a pass.
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int64_t wanted = k;  // still to be found among the keys with this prefix
  for (int shift = 24; shift >= 0 && wanted > 0; shift -= 8) {
    int64_t histogram[256] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = SortKey(scores[i]);
      if ((key & mask) == prefix) {
        ++histogram[(key >> shift) & 255u];
      }
    }
    uint32_t digit = 255;
    while (histogram[digit] < wanted) {
      wanted -= histogram[digit];
      --digit;
    }
    prefix |= digit << shift;
    mask |= 255u << shift;
  }
  // All keys above the threshold, and the first `wanted` that equal it.
  int32_t count = 0;
  for (int64_t i = 0; i < n && count < k; ++i) {
    const uint32_t key = SortKey(scores[i]);
    if (key > prefix || (key == prefix && wanted > 0)) {
      wanted -= key == prefix ? 1 : 0;
      selected[count++] = static_cast<int32_t>(i);
    }
  }
  return count;
}

void CheckIndexer(const IndexerParams& params) {
  BATON_KERNEL_CHECK(params.heads > 0 && params.dim > 0 && params.top_k > 0,
                     "indexer: heads, dim or top_k is not positive");
  for (int32_t i = 0; i < params.num_queries; ++i) {
    const IndexerQuery& query = params.queries[i];
    BATON_KERNEL_CHECK(query.visible_rows >= 0, "indexer: negative rows");
    BATON_KERNEL_CHECK(query.visible_rows == 0 || query.selected != nullptr,
                       "indexer: selected is null");
    BATON_KERNEL_CHECK(
        query.visible_rows <= params.top_k ||
            (query.scores != nullptr && query.q != nullptr &&
             query.weights != nullptr && query.rows.base != nullptr &&
             query.rows.rows_per_page > 0),
        "indexer: q, weights, rows or scores missing");
  }
}

void IndexerRef(const IndexerParams& params) {
  CheckIndexer(params);
  std::vector<float> row(static_cast<size_t>(params.dim));
  for (int32_t i = 0; i < params.num_queries; ++i) {
    const IndexerQuery& query = params.queries[i];
    const bool all = query.visible_rows <= params.top_k;
    for (int64_t w = 0; w < query.visible_rows && !all; ++w) {
      DecodeRow(RowAddress(query.rows, w), params.dim, params.encoding,
                row.data());
      double score = 0.0;
      for (int32_t h = 0; h < params.heads; ++h) {
        const float* q = query.q + h * params.q_head_stride;
        double dot = 0.0;
        for (int32_t k = 0; k < params.dim; ++k) {
          dot += double{q[k]} * double{row[static_cast<size_t>(k)]};
        }
        score += double{query.weights[h]} * (dot < 0.0 ? 0.0 : dot);
      }
      query.scores[w] = static_cast<float>(score);
    }
    SelectTopK(query.scores, query.visible_rows, params.top_k, query.selected);
  }
}

}  // namespace baton::kernels
