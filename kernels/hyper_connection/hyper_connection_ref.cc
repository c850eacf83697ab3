#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/hyper_connection/hyper_check.h"
#include "kernels/include/hyper_connection.h"
#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

float Sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

void CheckShape(int32_t tokens, int32_t hc_mult, int32_t dim) {
  BATON_KERNEL_CHECK(tokens >= 0 && dim > 0, "hyper: tokens < 0 or dim <= 0");
  BATON_KERNEL_CHECK(hc_mult > 0 && hc_mult <= kMaxStreams,
                     "hyper: hc_mult is not in 1..8");
}

// m[i] = (fn[i] . x) / rms(x), in double.
void MixesRef(const float* x, const float* fn, int32_t count, int64_t width,
              float rms_eps, float* m) {
  double square = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    square += double{x[i]} * double{x[i]};
  }
  const double r =
      1.0 / std::sqrt(square / static_cast<double>(width) + double{rms_eps});
  for (int32_t i = 0; i < count; ++i) {
    double dot = 0.0;
    for (int64_t k = 0; k < width; ++k) {
      dot += double{fn[i * width + k]} * double{x[k]};
    }
    m[i] = static_cast<float>(dot * r);
  }
}

void MixStreams(const float* x, const float* pre, int32_t hc_mult, int64_t dim,
                float* out) {
  for (int64_t c = 0; c < dim; ++c) {
    float sum = pre[0] * x[c];
    for (int32_t j = 1; j < hc_mult; ++j) {
      sum = std::fma(pre[j], x[j * dim + c], sum);
    }
    out[c] = sum;
  }
}

}  // namespace

void CheckHyperPre(const HyperPreParams& p) {
  CheckShape(p.tokens, p.hc_mult, p.dim);
  BATON_KERNEL_CHECK(p.sinkhorn_iterations >= 1,
                     "hyper: no Sinkhorn iterations");
  BATON_KERNEL_CHECK(
      p.tokens == 0 ||
          (p.streams != nullptr && p.fn != nullptr && p.scale != nullptr &&
           p.base != nullptr && p.mixed != nullptr && p.pre != nullptr &&
           p.post != nullptr && p.comb != nullptr),
      "hyper pre: a tensor is null");
}

void CheckHyperPost(const HyperPostParams& p) {
  CheckShape(p.tokens, p.hc_mult, p.dim);
  BATON_KERNEL_CHECK(p.tokens == 0 || (p.y != nullptr && p.streams != nullptr &&
                                       p.post != nullptr && p.comb != nullptr &&
                                       p.out != nullptr),
                     "hyper post: a tensor is null");
}

void CheckHyperHead(const HyperHeadParams& p) {
  CheckShape(p.tokens, p.hc_mult, p.dim);
  BATON_KERNEL_CHECK(p.tokens == 0 || (p.streams != nullptr &&
                                       p.fn != nullptr && p.scale != nullptr &&
                                       p.base != nullptr && p.z != nullptr),
                     "hyper head: a tensor is null");
}

int64_t HyperWorkspaceFloats(int32_t tokens, int32_t hc_mult) {
  // The mixes of every token and its inverse RMS.
  return int64_t{tokens} * ((2 + hc_mult) * hc_mult + 1);
}

void HyperPreWeights(const float* m, float scale, const float* base,
                     int32_t hc_mult, float hc_eps, float* pre) {
  for (int32_t j = 0; j < hc_mult; ++j) {
    pre[j] = Sigmoid(m[j] * scale + base[j]) + hc_eps;
  }
}

void HyperMix(const float* m, const float* scale, const float* base,
              int32_t hc_mult, int32_t sinkhorn_iterations, float hc_eps,
              float* pre, float* post, float* comb) {
  const int32_t n = hc_mult;
  HyperPreWeights(m, scale[0], base, n, hc_eps, pre);
  for (int32_t j = 0; j < n; ++j) {
    post[j] = 2.0f * Sigmoid(m[n + j] * scale[1] + base[n + j]);
  }
  // Row softmax, the first row pass.
  for (int32_t j = 0; j < n; ++j) {
    float* row = comb + j * n;
    for (int32_t k = 0; k < n; ++k) {
      const int32_t i = 2 * n + j * n + k;
      row[k] = m[i] * scale[2] + base[i];
    }
    const float top = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (int32_t k = 0; k < n; ++k) {
      row[k] = std::exp(row[k] - top);
      sum += row[k];
    }
    for (int32_t k = 0; k < n; ++k) {
      row[k] = row[k] / sum + hc_eps;
    }
  }
  for (int32_t iteration = 0; iteration < sinkhorn_iterations; ++iteration) {
    if (iteration > 0) {
      for (int32_t j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (int32_t k = 0; k < n; ++k) {
          sum += comb[j * n + k];
        }
        for (int32_t k = 0; k < n; ++k) {
          comb[j * n + k] /= sum + hc_eps;
        }
      }
    }
    for (int32_t k = 0; k < n; ++k) {
      float sum = 0.0f;
      for (int32_t j = 0; j < n; ++j) {
        sum += comb[j * n + k];
      }
      for (int32_t j = 0; j < n; ++j) {
        comb[j * n + k] /= sum + hc_eps;
      }
    }
  }
}

void HyperPreRef(const HyperPreParams& p) {
  CheckHyperPre(p);
  const int32_t mixes = (2 + p.hc_mult) * p.hc_mult;
  const int64_t width = int64_t{p.hc_mult} * p.dim;
  std::vector<float> m(static_cast<size_t>(mixes));
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* x = p.streams + t * p.token_stride;
    float* pre = p.pre + t * p.hc_mult;
    MixesRef(x, p.fn, mixes, width, p.rms_eps, m.data());
    HyperMix(m.data(), p.scale, p.base, p.hc_mult, p.sinkhorn_iterations,
             p.hc_eps, pre, p.post + t * p.hc_mult,
             p.comb + t * p.hc_mult * p.hc_mult);
    MixStreams(x, pre, p.hc_mult, p.dim, p.mixed + t * p.mixed_row_stride);
  }
}

void HyperPostRef(const HyperPostParams& p) {
  CheckHyperPost(p);
  const int32_t n = p.hc_mult;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* post = p.post + t * n;
    const float* comb = p.comb + t * n * n;
    const float* y = p.y + t * p.y_row_stride;
    const float* x = p.streams + t * p.token_stride;
    float* out = p.out + t * p.out_token_stride;
    for (int64_t c = 0; c < p.dim; ++c) {
      float in[kMaxStreams];  // out may be x
      for (int32_t j = 0; j < n; ++j) {
        in[j] = x[j * int64_t{p.dim} + c];
      }
      for (int32_t k = 0; k < n; ++k) {
        float sum = post[k] * y[c];
        for (int32_t j = 0; j < n; ++j) {
          sum = std::fma(comb[j * n + k], in[j], sum);
        }
        out[k * int64_t{p.dim} + c] = sum;
      }
    }
  }
}

void HyperHeadRef(const HyperHeadParams& p) {
  CheckHyperHead(p);
  const int64_t width = int64_t{p.hc_mult} * p.dim;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* x = p.streams + t * p.token_stride;
    float m[kMaxStreams];
    float pre[kMaxStreams];
    MixesRef(x, p.fn, p.hc_mult, width, p.rms_eps, m);
    HyperPreWeights(m, p.scale[0], p.base, p.hc_mult, p.hc_eps, pre);
    MixStreams(x, pre, p.hc_mult, p.dim, p.z + t * p.z_row_stride);
  }
}

}  // namespace baton::kernels
