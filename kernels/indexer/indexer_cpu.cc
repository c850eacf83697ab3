// SIMD indexer: rows of a query are scored in blocks (a task each), then each
// query selects.
#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/indexer/indexer_cpu.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/include/indexer.h"
#include "kernels/indexer/indexer_check.h"
#include "kernels/internal/dot-inl.h"
#include "kernels/internal/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {

// Scores of NT consecutive rows. `dots` holds heads * NT values.
template <int NT, class Reader>
HWY_INLINE void ScoreTile(const IndexerParams& p, const IndexerQuery& query,
                          int64_t row, float* dots) {
  Reader readers[NT];
  for (int n = 0; n < NT; ++n) {
    readers[n].data =
        static_cast<const uint8_t*>(RowAddress(query.rows, row + n));
  }
  DotColumn<NT>(query.q, p.q_head_stride, p.heads, readers, p.dim, dots, NT);
  for (int n = 0; n < NT; ++n) {
    float score = 0.0f;
    for (int64_t h = 0; h < p.heads; ++h) {
      const float dot = dots[h * NT + n];
      score += query.weights[h] * (dot < 0.0f ? 0.0f : dot);
    }
    query.scores[row + n] = score;
  }
}

template <class Reader>
HWY_INLINE void ScoreWith(const IndexerParams& p, const IndexerQuery& query,
                          int64_t begin, int64_t end) {
  constexpr int kRows = kParts == 1 ? 4 : 2;
  float* dots = ThreadScratch(int64_t{p.heads} * kRows);
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) {
    ScoreTile<kRows, Reader>(p, query, row, dots);
  }
  for (; row < end; ++row) {
    ScoreTile<1, Reader>(p, query, row, dots);
  }
}

void ScoreRows(const IndexerParams& p, const IndexerQuery& query, int64_t begin,
               int64_t end) {
  if (p.encoding == RowEncoding::kF32) {
    ScoreWith<F32Reader>(p, query, begin, end);
  } else {
    ScoreWith<Bf16Reader>(p, query, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(ScoreRows);

void IndexerCpu(const IndexerParams& params, Parallel& parallel) {
  CheckIndexer(params);
  constexpr int64_t kBlock = 64;  // rows of a task
  constexpr int64_t kMinParallelMultiplies = 1 << 17;
  const auto blocks_of = [&](const IndexerQuery& query) {
    return query.visible_rows <= params.top_k
               ? int64_t{0}
               : (query.visible_rows + kBlock - 1) / kBlock;
  };
  int64_t blocks = 0;
  for (int32_t i = 0; i < params.num_queries; ++i) {
    blocks += blocks_of(params.queries[i]);
  }
  const auto score = [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (int32_t i = 0; i < params.num_queries && first < end; ++i) {
      const IndexerQuery& query = params.queries[i];
      const int64_t count = blocks_of(query);
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, count);
      if (from < to) {
        HWY_DYNAMIC_DISPATCH(ScoreRows)
        (params, query, from * kBlock,
         std::min(to * kBlock, query.visible_rows));
      }
      first += count;
    }
  };
  const auto select = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const IndexerQuery& query = params.queries[i];
      SelectTopK(query.scores, query.visible_rows, params.top_k,
                 query.selected);
    }
  };
  const bool serial =
      blocks * kBlock * params.heads * params.dim < kMinParallelMultiplies;
  if (serial) {
    score(0, blocks);
    select(0, params.num_queries);
  } else {
    parallel.For(blocks, score);
    parallel.For(params.num_queries, select);
  }
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
