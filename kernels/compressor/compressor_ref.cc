#include <cmath>
#include <limits>
#include <vector>

#include "kernels/compressor/compressor_check.h"
#include "kernels/include/compressor.h"
#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

// One token of one span.
struct Token {
  const float* kv;
  const float* gate;
  const float* ape;
  int64_t position;
};

// Softmax-weighted mean of `count` values, in double.
float Pool(const double* g, const double* v, int count) {
  double top = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    top = std::max(top, g[i]);
  }
  double sum = 0.0;
  double value = 0.0;
  for (int i = 0; i < count; ++i) {
    const double weight = std::exp(g[i] - top);
    sum += weight;
    value += weight * v[i];
  }
  return static_cast<float>(value / sum);
}

void OverlapToken(const CompressorParams& p, const Token& token, float* state,
                  float* pooled) {
  const int64_t dim = p.dim;
  const int64_t width = 2 * dim;
  const int64_t ring = 2 * int64_t{p.ratio};
  float* own = state + token.position % ring * 2 * width;
  for (int64_t c = 0; c < width; ++c) {
    own[c] = token.kv[c];
    own[width + c] = token.gate[c] + token.ape[c];
  }
  if (pooled == nullptr) {
    return;
  }
  const int64_t window = token.position / p.ratio;
  std::vector<double> g(static_cast<size_t>(ring));
  std::vector<double> v(static_cast<size_t>(ring));
  for (int64_t c = 0; c < dim; ++c) {
    int count = 0;
    for (int64_t slot = window == 0 ? p.ratio : 0; slot < ring; ++slot) {
      const int64_t position = (window - 1) * p.ratio + slot;
      const int64_t channel = slot < p.ratio ? c : dim + c;
      const float* entry = state + position % ring * 2 * width;
      v[static_cast<size_t>(count)] = entry[channel];
      g[static_cast<size_t>(count)] = entry[width + channel];
      ++count;
    }
    pooled[c] = Pool(g.data(), v.data(), count);
  }
}

void OnlineToken(const CompressorParams& p, const Token& token, float* state,
                 float* pooled) {
  float* top = state;
  float* sum = state + p.dim;
  float* value = state + 2 * int64_t{p.dim};
  for (int64_t c = 0; c < p.dim; ++c) {
    const float g = token.gate[c] + token.ape[c];
    if (token.position % p.ratio == 0) {
      top[c] = g;
      sum[c] = 1.0f;
      value[c] = token.kv[c];
    } else {
      const float next = std::max(top[c], g);
      const float keep = std::exp(top[c] - next);
      const float add = std::exp(g - next);
      top[c] = next;
      sum[c] = std::fma(sum[c], keep, add);
      value[c] = std::fma(value[c], keep, add * token.kv[c]);
    }
    if (pooled != nullptr) {
      pooled[c] = value[c] / sum[c];
    }
  }
}

}  // namespace

void CheckCompressor(const CompressorParams& p) {
  BATON_KERNEL_CHECK(p.ratio > 0 && p.dim > 0 && p.ape != nullptr,
                     "compressor: ratio, dim or ape missing");
  for (int32_t i = 0; i < p.num_spans; ++i) {
    const CompressorSpan& s = p.spans[i];
    BATON_KERNEL_CHECK(s.num_tokens >= 0 && s.first_position >= 0,
                       "compressor: negative span");
    BATON_KERNEL_CHECK(
        s.num_tokens == 0 ||
            (s.kv != nullptr && s.gate != nullptr && s.state != nullptr),
        "compressor: kv, gate or state is null");
    BATON_KERNEL_CHECK(
        s.pooled != nullptr ||
            CompressorRows(s.first_position, s.num_tokens, p.ratio) == 0,
        "compressor: a row is completed but pooled is null");
  }
}

void CompressorRef(const CompressorParams& p) {
  CheckCompressor(p);
  const int64_t width = CompressorWidth(p.kind, p.dim);
  for (int32_t i = 0; i < p.num_spans; ++i) {
    const CompressorSpan& span = p.spans[i];
    for (int64_t n = 0; n < span.num_tokens; ++n) {
      const int64_t position = span.first_position + n;
      const Token token{span.kv + n * span.kv_row_stride,
                        span.gate + n * span.gate_row_stride,
                        p.ape + position % p.ratio * width, position};
      float* pooled = nullptr;
      if ((position + 1) % p.ratio == 0) {
        const int64_t row = position / p.ratio - span.first_position / p.ratio;
        pooled = span.pooled + row * span.pooled_row_stride;
      }
      if (p.kind == CompressorKind::kOverlap) {
        OverlapToken(p, token, span.state, pooled);
      } else {
        OnlineToken(p, token, span.state, pooled);
      }
    }
  }
}

void CompressorOneShotRef(const CompressorOneShotParams& p) {
  const int64_t width = CompressorWidth(p.kind, p.dim);
  const bool overlap = p.kind == CompressorKind::kOverlap;
  std::vector<double> g;
  std::vector<double> v;
  for (int64_t w = 0; w < p.num_tokens / p.ratio; ++w) {
    for (int64_t c = 0; c < p.dim; ++c) {
      g.clear();
      v.clear();
      const auto add = [&](int64_t token, int64_t channel) {
        v.push_back(p.kv[token * width + channel]);
        // The sum is an fp32 value of the model, so it is rounded here too.
        g.push_back(p.gate[token * width + channel] +
                    p.ape[token % p.ratio * width + channel]);
      };
      if (overlap && w > 0) {
        for (int64_t j = 0; j < p.ratio; ++j) {
          add((w - 1) * p.ratio + j, c);
        }
      }
      for (int64_t j = 0; j < p.ratio; ++j) {
        add(w * p.ratio + j, overlap ? p.dim + c : c);
      }
      p.pooled[w * p.dim + c] =
          Pool(g.data(), v.data(), static_cast<int>(g.size()));
    }
  }
}

}  // namespace baton::kernels
