// Readers of quantised weight rows for dot-inl.h: 16 exact fp32 weights from
// the stored codes, in registers. Re-included once per target (Highway).
#if defined(BATON_KERNELS_LINEAR_READERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BATON_KERNELS_LINEAR_READERS_INL_H_
#undef BATON_KERNELS_LINEAR_READERS_INL_H_
#else
#define BATON_KERNELS_LINEAR_READERS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/include/linear.h"
#include "kernels/include/numeric.h"
#include "kernels/internal/dot-inl.h"
#include "kernels/linear/e4m3_table.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {

// 128x128 tiles; `scales` is the scale row of this weight row's tile.
template <bool kE8m0>
struct Fp8Reader {
  static constexpr int64_t kSlab = 128;
  using Slab = Vec16;
  const uint8_t* codes;
  const uint8_t* scales;

  HWY_INLINE float Scale(int64_t k) const {
    if constexpr (kE8m0) {
      return F32FromE8m0(scales[k / kSlab]);
    } else {
      float scale;
      std::memcpy(&scale, scales + 4 * (k / kSlab), sizeof(scale));
      return scale;
    }
  }
  // The factor 2^8 belongs to LoadE4m3Div256.
  HWY_INLINE Slab Begin(int64_t k) const { return Set16(Scale(k) * 256.0f); }
  HWY_INLINE Vec16 Load(int64_t k, const Slab& factor) const {
    return Mul16(LoadE4m3Div256(codes + k), factor);
  }
  HWY_INLINE void Tail(int64_t k, int64_t n, float* out) const {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = F32FromE4m3(codes[k + i]) * Scale(k);
    }
  }
};

// kNv: e4m3 scale per 16 times a global scale; else e8m0 scale per 32.
template <bool kNv>
struct Fp4Reader {
  static constexpr int64_t kSlab = kNv ? 16 : 32;
  using Slab = Vec16;
  const uint8_t* codes;
  const uint8_t* scales;
  float global_scale;

  HWY_INLINE float Scale(int64_t k) const {
    const uint8_t code = scales[k / kSlab];
    if constexpr (kNv) {
      return kE4m3Table[code] * global_scale;
    } else {
      return F32FromE8m0(code);
    }
  }
  // The factor 1/2 belongs to LoadE2m1Times2.
  HWY_INLINE Slab Begin(int64_t k) const { return Set16(Scale(k) * 0.5f); }
  HWY_INLINE Vec16 Load(int64_t k, const Slab& factor) const {
    return Mul16(LoadE2m1Times2(codes + k / 2), factor);
  }
  HWY_INLINE void Tail(int64_t k, int64_t n, float* out) const {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = F32FromE2m1(E2m1Nibble(codes, k + i)) * Scale(k);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#endif  // BATON_KERNELS_LINEAR_READERS_INL_H_
