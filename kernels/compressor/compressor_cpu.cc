// SIMD compressor: channels are independent, so a task is one span times a
// block of channels and walks the span's tokens in order.
#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compressor/compressor_cpu.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/compressor/compressor_check.h"
#include "kernels/include/compressor.h"
#include "kernels/internal/check.h"
#include "kernels/internal/exp-inl.h"
#include "kernels/internal/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE Vec16 Max16(const Vec16& a, const Vec16& b) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Max(a.part[p], b.part[p]);
  }
  return r;
}
HWY_INLINE Vec16 Sub16(const Vec16& a, const Vec16& b) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Sub(a.part[p], b.part[p]);
  }
  return r;
}
HWY_INLINE Vec16 Div16(const Vec16& a, const Vec16& b) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Div(a.part[p], b.part[p]);
  }
  return r;
}

// Pools the window that ends at `position`, channels [c, c + 16): maximum over
// the slots, then sums in slot order.
HWY_INLINE void PoolWindow(const CompressorParams& p, const float* state,
                           int64_t position, int64_t c, float* pooled) {
  const int64_t dim = p.dim;
  const int64_t width = 2 * dim;
  const int64_t ring = 2 * int64_t{p.ratio};
  const int64_t window = position / p.ratio;
  const int64_t first_slot = window == 0 ? p.ratio : 0;
  const auto entry = [&](int64_t slot) HWY_ATTR {
    const int64_t at = ((window - 1) * p.ratio + slot + ring) % ring;
    return state + at * 2 * width + (slot < p.ratio ? c : dim + c);
  };
  Vec16 top = Load16(entry(first_slot) + width);
  for (int64_t slot = first_slot + 1; slot < ring; ++slot) {
    top = Max16(top, Load16(entry(slot) + width));
  }
  Vec16 sum = Zero16();
  Vec16 value = Zero16();
  for (int64_t slot = first_slot; slot < ring; ++slot) {
    const float* from = entry(slot);
    const Vec16 weight = Exp16(Sub16(Load16(from + width), top));
    sum = Add16(sum, weight);
    value = MulAdd16(weight, Load16(from), value);
  }
  Store16(Div16(value, sum), pooled + c);
}

// Channels [begin, end) of one overlap span; both multiples of 16 in [0, dim).
void OverlapChannels(const CompressorParams& p, const CompressorSpan& span,
                     int64_t begin, int64_t end) {
  const int64_t dim = p.dim;
  const int64_t width = 2 * dim;
  const int64_t ring = 2 * int64_t{p.ratio};
  int64_t row = 0;
  for (int64_t n = 0; n < span.num_tokens; ++n) {
    const int64_t position = span.first_position + n;
    const float* kv = span.kv + n * span.kv_row_stride;
    const float* gate = span.gate + n * span.gate_row_stride;
    const float* ape = p.ape + position % p.ratio * width;
    float* own = span.state + position % ring * 2 * width;
    for (int64_t half = 0; half < width; half += dim) {
      for (int64_t c = half + begin; c < half + end; c += 16) {
        Store16(Load16(kv + c), own + c);
        Store16(Add16(Load16(gate + c), Load16(ape + c)), own + width + c);
      }
    }
    if ((position + 1) % p.ratio == 0) {
      for (int64_t c = begin; c < end; c += 16) {
        PoolWindow(p, span.state, position, c,
                   span.pooled + row * span.pooled_row_stride);
      }
      ++row;
    }
  }
}

// The recurrence of compressor.h over one span, 16 channels in registers.
HWY_INLINE void OnlineChannels16(const CompressorParams& p,
                                 const CompressorSpan& span, int64_t c) {
  float* top_state = span.state + c;
  float* sum_state = span.state + p.dim + c;
  float* value_state = span.state + 2 * int64_t{p.dim} + c;
  Vec16 top = Zero16();
  Vec16 sum = Zero16();
  Vec16 value = Zero16();
  if (span.first_position % p.ratio != 0) {
    top = Load16(top_state);
    sum = Load16(sum_state);
    value = Load16(value_state);
  }
  int64_t row = 0;
  for (int64_t n = 0; n < span.num_tokens; ++n) {
    const int64_t position = span.first_position + n;
    const Vec16 kv = Load16(span.kv + n * span.kv_row_stride + c);
    const Vec16 g = Add16(Load16(span.gate + n * span.gate_row_stride + c),
                          Load16(p.ape + position % p.ratio * p.dim + c));
    if (position % p.ratio == 0) {
      top = g;
      sum = Set16(1.0f);
      value = kv;
    } else {
      const Vec16 next = Max16(top, g);
      const Vec16 keep = Exp16(Sub16(top, next));
      const Vec16 add = Exp16(Sub16(g, next));
      top = next;
      sum = MulAdd16(sum, keep, add);
      value = MulAdd16(value, keep, Mul16(add, kv));
    }
    if ((position + 1) % p.ratio == 0) {
      Store16(Div16(value, sum),
              span.pooled + row * span.pooled_row_stride + c);
      ++row;
    }
  }
  Store16(top, top_state);
  Store16(sum, sum_state);
  Store16(value, value_state);
}

void CompressChannels(const CompressorParams& p, const CompressorSpan& span,
                      int64_t begin, int64_t end) {
  if (p.kind == CompressorKind::kOverlap) {
    OverlapChannels(p, span, begin, end);
    return;
  }
  for (int64_t c = begin; c < end; c += 16) {
    OnlineChannels16(p, span, c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(CompressChannels);

void CompressorCpu(const CompressorParams& p, Parallel& parallel) {
  CheckCompressor(p);
  BATON_KERNEL_CHECK(p.dim % 16 == 0,
                     "compressor: dim is not a multiple of 16");
  constexpr int64_t kBlock = 64;  // channels of a task
  constexpr int64_t kMinParallelValues = 1 << 14;
  const int64_t blocks = (p.dim + kBlock - 1) / kBlock;
  int64_t tokens = 0;
  for (int32_t i = 0; i < p.num_spans; ++i) {
    tokens += p.spans[i].num_tokens;
  }
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const CompressorSpan& span = p.spans[task / blocks];
      const int64_t first = task % blocks * kBlock;
      if (span.num_tokens > 0) {
        HWY_DYNAMIC_DISPATCH(CompressChannels)
        (p, span, first, std::min<int64_t>(first + kBlock, p.dim));
      }
    }
  };
  const int64_t tasks = blocks * p.num_spans;
  if (tokens * p.dim < kMinParallelValues) {
    run(0, tasks);
  } else {
    parallel.For(tasks, run);
  }
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
