#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/include/sparse_attention.h"
#include "kernels/internal/check.h"
#include "kernels/sparse_attention/sparse_attention_check.h"

namespace baton::kernels {

void CheckSparseAttention(const SparseAttentionParams& p) {
  BATON_KERNEL_CHECK(p.tokens >= 0 && p.heads > 0 && p.dim > 0,
                     "sparse_attention: empty shape");
  if (p.tokens == 0) {
    return;
  }
  BATON_KERNEL_CHECK(p.q != nullptr && p.out != nullptr && p.sink != nullptr &&
                         p.row_begin != nullptr,
                     "sparse_attention: a tensor is null");
  for (int32_t t = 0; t < p.tokens; ++t) {
    BATON_KERNEL_CHECK(p.row_begin[t] <= p.row_begin[t + 1],
                       "sparse_attention: row_begin is not ascending");
  }
  BATON_KERNEL_CHECK(
      p.row_begin[p.tokens] == p.row_begin[0] || p.rows != nullptr,
      "sparse_attention: rows is null");
}

void SparseAttentionRef(const SparseAttentionParams& p) {
  CheckSparseAttention(p);
  std::vector<float> row(static_cast<size_t>(p.dim));
  std::vector<double> sum(static_cast<size_t>(p.dim));
  std::vector<double> score;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const void* const* rows = p.rows + p.row_begin[t];
    const int64_t count = p.row_begin[t + 1] - p.row_begin[t];
    score.resize(static_cast<size_t>(count));
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* q = p.q + t * p.q_token_stride + h * p.q_head_stride;
      float* out = p.out + t * p.out_token_stride + h * p.out_head_stride;
      double top = -std::numeric_limits<double>::infinity();
      for (int64_t r = 0; r < count; ++r) {
        DecodeRow(rows[r], p.dim, p.encoding, row.data());
        double dot = 0.0;
        for (int32_t c = 0; c < p.dim; ++c) {
          dot += double{q[c]} * double{row[static_cast<size_t>(c)]};
        }
        score[static_cast<size_t>(r)] = dot * double{p.scale};
        top = std::max(top, score[static_cast<size_t>(r)]);
      }
      std::fill(sum.begin(), sum.end(), 0.0);
      double total = count == 0 ? 1.0 : std::exp(double{p.sink[h]} - top);
      for (int64_t r = 0; r < count; ++r) {
        const double weight = std::exp(score[static_cast<size_t>(r)] - top);
        total += weight;
        DecodeRow(rows[r], p.dim, p.encoding, row.data());
        for (size_t c = 0; c < row.size(); ++c) {
          sum[c] += weight * double{row[c]};
        }
      }
      for (int32_t c = 0; c < p.dim; ++c) {
        out[c] = static_cast<float>(sum[static_cast<size_t>(c)] / total);
      }
    }
  }
}

}  // namespace baton::kernels
