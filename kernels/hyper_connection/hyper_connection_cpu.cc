#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hyper_connection/hyper_connection_cpu.cc"
#include <cmath>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/hyper_connection/hyper_check.h"
#include "kernels/include/hyper_connection.h"
#include "kernels/include/linear.h"
#include "kernels/internal/check.h"
#include "kernels/internal/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {

// 1 / rms of n values, squares in 16 lanes.
float InverseRms(const float* x, int64_t n, float eps) {
  const int64_t full = n & ~int64_t{15};
  Vec16 sum = Zero16();
  for (int64_t i = 0; i < full; i += 16) {
    const Vec16 v = Load16(x + i);
    sum = MulAdd16(v, v, sum);
  }
  if (full < n) {
    const Vec16 v = LoadPadded16(x + full, n - full);
    sum = MulAdd16(v, v, sum);
  }
  return 1.0f / std::sqrt(Fold(sum) / static_cast<float>(n) + eps);
}

// out[c] = sum_j pre[j] * x[j, c], j ascending, FMA.
void MixStreams(const float* x, const float* pre, int32_t hc_mult, int64_t dim,
                float* out) {
  const int64_t full = dim & ~int64_t{15};
  for (int64_t c = 0; c < dim; c += 16) {
    const int64_t count = c < full ? 16 : dim - full;
    Vec16 sum = Zero16();
    for (int32_t j = 0; j < hc_mult; ++j) {
      const float* from = x + j * dim + c;
      const Vec16 v = count == 16 ? Load16(from) : LoadPadded16(from, count);
      sum = j == 0 ? Mul16(Set16(pre[j]), v) : MulAdd16(Set16(pre[j]), v, sum);
    }
    if (count == 16) {
      Store16(sum, out + c);
    } else {
      HWY_ALIGN float buffer[16];
      Store16(sum, buffer);
      std::memcpy(out + c, buffer, static_cast<size_t>(count) * 4);
    }
  }
}

// Channels [c, c + count) of all output streams of one token.
HWY_INLINE void PostChannels(const float* post, const float* comb,
                             const float* y, const float* x, float* out,
                             int32_t n, int64_t dim, int64_t c, int64_t count) {
  const auto load = [count](const float* from) HWY_ATTR {
    return count == 16 ? Load16(from) : LoadPadded16(from, count);
  };
  Vec16 in[kMaxStreams];  // all read before any is written: out may be x
  for (int32_t j = 0; j < n; ++j) {
    in[j] = load(x + j * dim + c);
  }
  const Vec16 yv = load(y + c);
  for (int32_t k = 0; k < n; ++k) {
    Vec16 sum = Mul16(Set16(post[k]), yv);
    for (int32_t j = 0; j < n; ++j) {
      sum = MulAdd16(Set16(comb[j * n + k]), in[j], sum);
    }
    if (count == 16) {
      Store16(sum, out + k * dim + c);
    } else {
      HWY_ALIGN float buffer[16];
      Store16(sum, buffer);
      std::memcpy(out + k * dim + c, buffer, static_cast<size_t>(count) * 4);
    }
  }
}

void PostTokens(const HyperPostParams& p, int64_t begin, int64_t end) {
  const int32_t n = p.hc_mult;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t c = 0; c < p.dim; c += 16) {
      PostChannels(p.post + t * n, p.comb + t * n * n, p.y + t * p.y_row_stride,
                   p.streams + t * p.token_stride,
                   p.out + t * p.out_token_stride, n, p.dim, c,
                   std::min<int64_t>(16, p.dim - c));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(InverseRms);
HWY_EXPORT(MixStreams);
HWY_EXPORT(PostTokens);

namespace {

constexpr int64_t kMinParallelValues = 1 << 16;

void ForTokens(int64_t tokens, int64_t values_per_token, Parallel& parallel,
               RangeFunction run) {
  if (tokens * values_per_token < kMinParallelValues) {
    run(0, tokens);
  } else {
    parallel.For(tokens, run);
  }
}

// fn . x of every token into the workspace, [tokens, count].
void Mixes(const float* streams, int64_t token_stride, int32_t tokens,
           const float* fn, int32_t count, int64_t width, float* workspace,
           Parallel& parallel) {
  LinearParams linear;
  linear.x = streams;
  linear.x_row_stride = token_stride;
  linear.y = workspace;
  linear.y_row_stride = count;
  linear.tokens = tokens;
  linear.weight.encoding = WeightEncoding::kF32;
  linear.weight.data = fn;
  linear.weight.rows = count;
  linear.weight.cols = static_cast<int32_t>(width);
  LinearCpu(linear, parallel);
}

}  // namespace

void HyperPreCpu(const HyperPreParams& p, Parallel& parallel) {
  CheckHyperPre(p);
  if (p.tokens == 0) {
    return;
  }
  BATON_KERNEL_CHECK(p.workspace != nullptr, "hyper pre: no workspace");
  const int32_t mixes = (2 + p.hc_mult) * p.hc_mult;
  const int64_t width = int64_t{p.hc_mult} * p.dim;
  Mixes(p.streams, p.token_stride, p.tokens, p.fn, mixes, width, p.workspace,
        parallel);
  ForTokens(p.tokens, width, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = p.streams + t * p.token_stride;
      float* m = p.workspace + t * mixes;
      float* pre = p.pre + t * p.hc_mult;
      const float r = HWY_DYNAMIC_DISPATCH(InverseRms)(x, width, p.rms_eps);
      for (int32_t i = 0; i < mixes; ++i) {
        m[i] *= r;
      }
      HyperMix(m, p.scale, p.base, p.hc_mult, p.sinkhorn_iterations, p.hc_eps,
               pre, p.post + t * p.hc_mult, p.comb + t * p.hc_mult * p.hc_mult);
      HWY_DYNAMIC_DISPATCH(MixStreams)
      (x, pre, p.hc_mult, p.dim, p.mixed + t * p.mixed_row_stride);
    }
  });
}

void HyperPostCpu(const HyperPostParams& p, Parallel& parallel) {
  CheckHyperPost(p);
  ForTokens(p.tokens, int64_t{p.hc_mult} * p.dim, parallel,
            [&](int64_t begin, int64_t end) {
              HWY_DYNAMIC_DISPATCH(PostTokens)(p, begin, end);
            });
}

void HyperHeadCpu(const HyperHeadParams& p, Parallel& parallel) {
  CheckHyperHead(p);
  if (p.tokens == 0) {
    return;
  }
  BATON_KERNEL_CHECK(p.workspace != nullptr, "hyper head: no workspace");
  const int64_t width = int64_t{p.hc_mult} * p.dim;
  Mixes(p.streams, p.token_stride, p.tokens, p.fn, p.hc_mult, width,
        p.workspace, parallel);
  ForTokens(p.tokens, width, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = p.streams + t * p.token_stride;
      float* m = p.workspace + t * p.hc_mult;
      float pre[kMaxStreams];
      const float r = HWY_DYNAMIC_DISPATCH(InverseRms)(x, width, p.rms_eps);
      for (int32_t i = 0; i < p.hc_mult; ++i) {
        m[i] *= r;
      }
      HyperPreWeights(m, p.scale[0], p.base, p.hc_mult, p.hc_eps, pre);
      HWY_DYNAMIC_DISPATCH(MixStreams)
      (x, pre, p.hc_mult, p.dim, p.z + t * p.z_row_stride);
    }
  });
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
