// SIMD attention. A task is one token times a block of heads, so that each row
// is loaded once for the block; the weights of the block lie in thread scratch.
#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse_attention/sparse_attention_cpu.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/include/sparse_attention.h"
#include "kernels/internal/check.h"
#include "kernels/internal/dot-inl.h"
#include "kernels/internal/exp-inl.h"
#include "kernels/internal/scratch.h"
#include "kernels/sparse_attention/sparse_attention_check.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// HB heads of one token against its rows.
struct Block {
  const void* const* rows;
  int64_t count;
  int64_t dim;
  float scale;
};

// weights[h * stride + r] = q[h] . row[r] * scale.
template <int HB, class Reader>
HWY_INLINE void Scores(const Block& block, const float* const* q,
                       float* weights, int64_t stride) {
  constexpr int kRows = kParts == 1 ? 4 : 2;
  float tile[HB * kRows];
  int64_t r = 0;
  for (; r + kRows <= block.count; r += kRows) {
    Reader readers[kRows];
    for (int n = 0; n < kRows; ++n) {
      readers[n].data = static_cast<const uint8_t*>(block.rows[r + n]);
    }
    DotTile<HB, kRows>(q, readers, block.dim, tile);
    for (int h = 0; h < HB; ++h) {
      for (int n = 0; n < kRows; ++n) {
        weights[h * stride + r + n] = tile[h * kRows + n] * block.scale;
      }
    }
  }
  for (; r < block.count; ++r) {
    const Reader reader[1] = {{static_cast<const uint8_t*>(block.rows[r])}};
    DotTile<HB, 1>(q, reader, block.dim, tile);
    for (int h = 0; h < HB; ++h) {
      weights[h * stride + r] = tile[h] * block.scale;
    }
  }
}

// Scores -> exp(score - max) in place; returns the denominator. `padded` is
// count rounded up to 16; the padding becomes 0.
HWY_INLINE float Softmax(float* weights, int64_t count, int64_t padded,
                         float sink) {
  float top = weights[0];
  for (int64_t r = 1; r < count; ++r) {
    top = weights[r] > top ? weights[r] : top;
  }
  std::fill(weights + count, weights + padded, -INFINITY);
  const Vec16 minus_top = Set16(-top);
  Vec16 sum = Zero16();
  for (int64_t r = 0; r < padded; r += 16) {
    const Vec16 weight = Exp16(Add16(Load16(weights + r), minus_top));
    Store16(weight, weights + r);
    sum = Add16(sum, weight);
  }
  return Fold(sum) + std::exp(sink - top);
}

// NC * 16 channels of the output from channel c on.
template <int HB, int NC, class Reader>
HWY_INLINE void Values(const Block& block, const float* weights, int64_t stride,
                       const float* total, int64_t c, float* const* out) {
  Vec16 acc[HB][NC];
#pragma GCC unroll 8
  for (int h = 0; h < HB; ++h) {
#pragma GCC unroll 8
    for (int i = 0; i < NC; ++i) {
      acc[h][i] = Zero16();
    }
  }
  for (int64_t r = 0; r < block.count; ++r) {
    const Reader reader{static_cast<const uint8_t*>(block.rows[r])};
    Vec16 row[NC];
#pragma GCC unroll 8
    for (int i = 0; i < NC; ++i) {
      row[i] = reader.Load(c + 16 * i, NoScale());
    }
#pragma GCC unroll 8
    for (int h = 0; h < HB; ++h) {
      const Vec16 weight = Set16(weights[h * stride + r]);
#pragma GCC unroll 8
      for (int i = 0; i < NC; ++i) {
        acc[h][i] = MulAdd16(weight, row[i], acc[h][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < HB; ++h) {
#pragma GCC unroll 8
    for (int i = 0; i < NC; ++i) {
      for (int p = 0; p < kParts; ++p) {
        hn::StoreU(hn::Div(acc[h][i].part[p], hn::Set(DF(), total[h])), DF(),
                   out[h] + c + 16 * i + p * kLanes);
      }
    }
  }
}

template <int HB, class Reader>
HWY_NOINLINE void HeadBlock(const SparseAttentionParams& p, int64_t token,
                            int64_t head) {
  const float* q[HB];
  float* out[HB];
  for (int h = 0; h < HB; ++h) {
    q[h] = p.q + token * p.q_token_stride + (head + h) * p.q_head_stride;
    out[h] =
        p.out + token * p.out_token_stride + (head + h) * p.out_head_stride;
  }
  const Block block{p.rows + p.row_begin[token],
                    p.row_begin[token + 1] - p.row_begin[token], p.dim,
                    p.scale};
  if (block.count == 0) {
    for (int h = 0; h < HB; ++h) {
      std::fill(out[h], out[h] + p.dim, 0.0f);
    }
    return;
  }
  const int64_t padded = (block.count + 15) & ~int64_t{15};
  float* weights = ThreadScratch(HB * padded);
  Scores<HB, Reader>(block, q, weights, padded);
  float total[HB];
  for (int h = 0; h < HB; ++h) {
    total[h] =
        Softmax(weights + h * padded, block.count, padded, p.sink[head + h]);
  }
  constexpr int kChannels = kParts == 1 ? 4 : 2;
  int64_t c = 0;
  for (; c + 16 * kChannels <= p.dim; c += 16 * kChannels) {
    Values<HB, kChannels, Reader>(block, weights, padded, total, c, out);
  }
  for (; c < p.dim; c += 16) {
    Values<HB, 1, Reader>(block, weights, padded, total, c, out);
  }
}

template <class Reader>
HWY_INLINE void TokenHeads(const SparseAttentionParams& p, int64_t token,
                           int64_t head, int64_t end) {
  for (; head + kTileM <= end; head += kTileM) {
    HeadBlock<kTileM, Reader>(p, token, head);
  }
  for (; head < end; ++head) {
    HeadBlock<1, Reader>(p, token, head);
  }
}

void Attend(const SparseAttentionParams& p, int64_t token, int64_t head,
            int64_t end) {
  if (p.encoding == RowEncoding::kF32) {
    TokenHeads<F32Reader>(p, token, head, end);
  } else {
    TokenHeads<Bf16Reader>(p, token, head, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(Attend);

void SparseAttentionCpu(const SparseAttentionParams& p, Parallel& parallel) {
  CheckSparseAttention(p);
  BATON_KERNEL_CHECK(p.dim % 16 == 0,
                     "sparse_attention: dim is not a multiple of 16");
  if (p.tokens == 0) {
    return;
  }
  constexpr int64_t kHeads = 4;  // of a task
  constexpr int64_t kMinParallelMultiplies = 1 << 17;
  const int64_t blocks = (p.heads + kHeads - 1) / kHeads;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task % blocks * kHeads;
      HWY_DYNAMIC_DISPATCH(Attend)
      (p, task / blocks, head, std::min<int64_t>(head + kHeads, p.heads));
    }
  };
  const int64_t rows = p.row_begin[p.tokens] - p.row_begin[0];
  if (rows * p.heads * p.dim < kMinParallelMultiplies) {
    run(0, blocks * p.tokens);
  } else {
    parallel.For(blocks * p.tokens, run);
  }
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
