#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/experts/experts_check.h"
#include "kernels/include/experts.h"
#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

void CheckShape(const LinearWeight& w, int32_t rows, int32_t cols) {
  BATON_KERNEL_CHECK(w.rows == rows && w.cols == cols,
                     "experts: a weight has the wrong shape");
}

void LinearOne(const LinearWeight& w, const float* x, float* y) {
  LinearParams params;
  params.x = x;
  params.y = y;
  params.tokens = 1;
  params.weight = w;
  LinearRef(params);
}

// sum += expert(x), for one token.
void AddExpert(const ExpertsParams& p, const ExpertWeights& expert,
               const float* x, float weight, std::vector<float>& sum) {
  std::vector<float> a(static_cast<size_t>(p.hidden));
  std::vector<float> b(static_cast<size_t>(p.hidden));
  std::vector<float> y(static_cast<size_t>(p.dim));
  LinearOne(expert.w1, x, a.data());
  LinearOne(expert.w3, x, b.data());
  for (size_t i = 0; i < a.size(); ++i) {
    if (p.limit > 0.0f) {
      a[i] = std::min(a[i], p.limit);
      b[i] = std::clamp(b[i], -p.limit, p.limit);
    }
    const double gate = double{a[i]} / (1.0 + std::exp(-double{a[i]}));
    a[i] = static_cast<float>(gate * double{b[i]} * double{weight});
  }
  LinearOne(expert.w2, a.data(), y.data());
  for (size_t i = 0; i < y.size(); ++i) {
    sum[i] += y[i];
  }
}

}  // namespace

void CheckExperts(const ExpertsParams& p) {
  BATON_KERNEL_CHECK(p.tokens >= 0 && p.dim > 0 && p.hidden > 0 &&
                         p.num_experts > 0 && p.top_k >= 0,
                     "experts: empty shape");
  BATON_KERNEL_CHECK(p.tokens == 0 || (p.x != nullptr && p.y != nullptr &&
                                       p.experts != nullptr),
                     "experts: a tensor is null");
  const int64_t slots = int64_t{p.tokens} * p.top_k;
  for (int64_t i = 0; i < slots; ++i) {
    const int32_t e = p.expert_ids[i];
    BATON_KERNEL_CHECK(e >= 0 && e < p.num_experts,
                       "experts: expert id out of range");
    CheckShape(p.experts[e].w1, p.hidden, p.dim);
    CheckShape(p.experts[e].w3, p.hidden, p.dim);
    CheckShape(p.experts[e].w2, p.dim, p.hidden);
  }
  if (p.shared != nullptr) {
    CheckShape(p.shared->w1, p.hidden, p.dim);
    CheckShape(p.shared->w3, p.hidden, p.dim);
    CheckShape(p.shared->w2, p.dim, p.hidden);
  }
}

void ExpertsRef(const ExpertsParams& p) {
  CheckExperts(p);
  std::vector<float> sum(static_cast<size_t>(p.dim));
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* x = p.x + t * p.x_row_stride;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int32_t e = 0; e < p.num_experts; ++e) {
      for (int64_t i = t * p.top_k; i < (t + 1) * p.top_k; ++i) {
        if (p.expert_ids[i] == e) {
          AddExpert(p, p.experts[e], x, p.expert_weights[i], sum);
        }
      }
    }
    if (p.shared != nullptr) {
      AddExpert(p, *p.shared, x, 1.0f, sum);
    }
    std::copy(sum.begin(), sum.end(), p.y + t * p.y_row_stride);
  }
}

}  // namespace baton::kernels
