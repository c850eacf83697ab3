// Register-tiled dot products of MT fp32 vectors with NT stored rows: the one
// inner loop of linear, experts, attention and indexer. Every product has the
// order that linear.h promises: lane k % 16, ascending k, FMA, one fold.
// Re-included once per target (Highway).
#if defined(BATON_KERNELS_INTERNAL_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BATON_KERNELS_INTERNAL_DOT_INL_H_
#undef BATON_KERNELS_INTERNAL_DOT_INL_H_
#else
#define BATON_KERNELS_INTERNAL_DOT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/internal/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Readers: Begin(k) gives what the kSlab values at k share (their scale),
// Load(k, slab) the 16 values at k, Tail(k, n, out) writes n < 16 values at k.
struct NoScale {};
inline constexpr int64_t kNoSlab = int64_t{1} << 40;

struct F32Reader {
  static constexpr int64_t kSlab = kNoSlab;
  const uint8_t* data;
  using Slab = NoScale;
  HWY_INLINE Slab Begin(int64_t) const { return {}; }
  HWY_INLINE Vec16 Load(int64_t k, const Slab&) const {
    return Load16(reinterpret_cast<const float*>(data + 4 * k));
  }
  HWY_INLINE void Tail(int64_t k, int64_t n, float* out) const {
    std::memcpy(out, data + 4 * k, static_cast<size_t>(4 * n));
  }
};

struct Bf16Reader {
  static constexpr int64_t kSlab = kNoSlab;
  const uint8_t* data;
  using Slab = NoScale;
  HWY_INLINE Slab Begin(int64_t) const { return {}; }
  HWY_INLINE Vec16 Load(int64_t k, const Slab&) const {
    return LoadBf16(data + 2 * k);
  }
  HWY_INLINE void Tail(int64_t k, int64_t n, float* out) const {
    for (int64_t i = 0; i < n; ++i) {
      uint16_t bits;
      std::memcpy(&bits, data + 2 * (k + i), sizeof(bits));
      out[i] = F32FromBf16(bits);
    }
  }
};

// out[m * NT + n] = x[m] . w[n] over `cols` values.
template <int MT, int NT, class Reader>
HWY_INLINE void DotTile(const float* const* x, const Reader* rows, int64_t cols,
                        float* HWY_RESTRICT out) {
  Vec16 acc[MT][NT];
#pragma GCC unroll 8
  for (int n = 0; n < NT; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m) {
      acc[m][n] = Zero16();
    }
  }
  const int64_t full = cols & ~int64_t{15};
  for (int64_t slab = 0; slab < full; slab += Reader::kSlab) {
    typename Reader::Slab scale[NT];
#pragma GCC unroll 8
    for (int n = 0; n < NT; ++n) {
      scale[n] = rows[n].Begin(slab);
    }
    const int64_t end = std::min(full, slab + Reader::kSlab);
    for (int64_t k = slab; k < end; k += 16) {
      Vec16 xv[MT];
#pragma GCC unroll 8
      for (int m = 0; m < MT; ++m) {
        xv[m] = Load16(x[m] + k);
      }
#pragma GCC unroll 8
      for (int n = 0; n < NT; ++n) {
        const Vec16 wv = rows[n].Load(k, scale[n]);
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) {
          acc[m][n] = MulAdd16(xv[m], wv, acc[m][n]);
        }
      }
    }
  }
  if (full < cols) {
    const int64_t rest = cols - full;
    Vec16 xv[MT];
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m) {
      xv[m] = LoadPadded16(x[m] + full, rest);
    }
#pragma GCC unroll 8
    for (int n = 0; n < NT; ++n) {
      HWY_ALIGN float buffer[16] = {};
      rows[n].Tail(full, rest, buffer);
      const Vec16 wv = Load16(buffer);
#pragma GCC unroll 8
      for (int m = 0; m < MT; ++m) {
        acc[m][n] = MulAdd16(xv[m], wv, acc[m][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MT; ++m) {
    if constexpr (NT == 4) {
      StoreFoldFour(acc[m][0], acc[m][1], acc[m][2], acc[m][3], out + m * NT);
    } else {
#pragma GCC unroll 8
      for (int n = 0; n < NT; ++n) {
        out[m * NT + n] = Fold(acc[m][n]);
      }
    }
  }
}

// Tile heights that fit the register file: 16 accumulators of one register, or
// 8 of two.
inline constexpr int kTileM = kParts == 1 ? 4 : 2;

// out[m * out_stride + n] for m < num_x and NT rows, any num_x.
template <int NT, class Reader>
HWY_INLINE void DotColumn(const float* x, int64_t x_stride, int64_t num_x,
                          const Reader* rows, int64_t cols, float* out,
                          int64_t out_stride) {
  float tile[kTileM * NT];
  int64_t m = 0;
  for (; m + kTileM <= num_x; m += kTileM) {
    const float* xs[kTileM];
    for (int i = 0; i < kTileM; ++i) {
      xs[i] = x + (m + i) * x_stride;
    }
    DotTile<kTileM, NT>(xs, rows, cols, tile);
    for (int i = 0; i < kTileM; ++i) {
      std::memcpy(out + (m + i) * out_stride, tile + i * NT,
                  sizeof(float) * NT);
    }
  }
  for (; m < num_x; ++m) {
    const float* xs[1] = {x + m * x_stride};
    DotTile<1, NT>(xs, rows, cols, tile);
    std::memcpy(out + m * out_stride, tile, sizeof(float) * NT);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#endif  // BATON_KERNELS_INTERNAL_DOT_INL_H_
