// The virtual vector of 16 fp32 lanes that fixes summation orders on every
// instruction set, its loads from all row encodings, and the fold of its lanes.
// Re-included once per target (Highway).
#if defined(BATON_KERNELS_INTERNAL_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BATON_KERNELS_INTERNAL_VEC16_INL_H_
#undef BATON_KERNELS_INTERNAL_VEC16_INL_H_
#else
#define BATON_KERNELS_INTERNAL_VEC16_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/include/numeric.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kParts = 16 / kLanes;

// Lane i of the virtual vector is lane i % kLanes of part i / kLanes.
struct Vec16 {
  VF part[kParts];
};

HWY_INLINE Vec16 Zero16() {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Zero(DF());
  }
  return r;
}

HWY_INLINE Vec16 Set16(float value) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Set(DF(), value);
  }
  return r;
}

HWY_INLINE Vec16 Load16(const float* from) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::LoadU(DF(), from + p * kLanes);
  }
  return r;
}

HWY_INLINE void Store16(const Vec16& v, float* to) {
  for (int p = 0; p < kParts; ++p) {
    hn::StoreU(v.part[p], DF(), to + p * kLanes);
  }
}

// acc + a * b with one rounding (FMA) where the machine has it.
HWY_INLINE Vec16 MulAdd16(const Vec16& a, const Vec16& b, const Vec16& acc) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::MulAdd(a.part[p], b.part[p], acc.part[p]);
  }
  return r;
}

HWY_INLINE Vec16 Mul16(const Vec16& a, const Vec16& b) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Mul(a.part[p], b.part[p]);
  }
  return r;
}

HWY_INLINE Vec16 Add16(const Vec16& a, const Vec16& b) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::Add(a.part[p], b.part[p]);
  }
  return r;
}

// The first `count` (0..16) values, zeros behind them; reads no further.
HWY_INLINE Vec16 LoadPadded16(const float* from, int64_t count) {
  HWY_ALIGN float buffer[16] = {};
  std::memcpy(buffer, from, static_cast<size_t>(count) * sizeof(float));
  return Load16(buffer);
}

HWY_INLINE Vec16 LoadBf16(const uint8_t* from) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<uint32_t, DF> d32;
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    const auto bits = hn::LoadU(
        d16, reinterpret_cast<const uint16_t*>(from + 2 * p * kLanes));
    r.part[p] = hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
  return r;
}

// 16 E4M3 codes as value * 2^-8: the code's bits are those of a half-precision
// number with a smaller exponent bias, subnormals included, so the conversion
// is exact and the caller's scale absorbs the factor.
HWY_INLINE Vec16 LoadE4m3Div256(const uint8_t* from) {
  const hn::Rebind<int8_t, DF> d8;
  const hn::Rebind<int16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const auto mask = hn::Set(d16, static_cast<int16_t>(0xBF80));
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    const auto code =
        hn::LoadU(d8, reinterpret_cast<const int8_t*>(from + p * kLanes));
    const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, code)), mask);
    r.part[p] = hn::PromoteTo(DF(), hn::BitCast(dh, bits));
  }
  return r;
}

// 16 packed E2M1 codes (8 bytes) as value * 2, which are small integers.
HWY_INLINE Vec16 LoadE2m1Times2(const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  Vec16 r;
  for (int i = 0; i < 16; ++i) {
    r.part[i] = hn::Set(DF(), 2.0f * F32FromE2m1(E2m1Nibble(from, i)));
  }
  return r;
#else
  const hn::FixedTag<uint8_t, 16> d8;
  const hn::FixedTag<int8_t, 16> di8;
  HWY_ALIGN static constexpr uint8_t kTable[16] = {
      0, 1, 2, 3, 4, 6, 8, 12, 0, 0xFF, 0xFE, 0xFD, 0xFC, 0xFA, 0xF8, 0xF4};
  uint64_t packed;
  std::memcpy(&packed, from, sizeof(packed));
  const auto bytes =
      hn::BitCast(d8, hn::Set(hn::FixedTag<uint64_t, 2>(), packed));
  const auto low = hn::And(bytes, hn::Set(d8, uint8_t{15}));
  const auto high = hn::ShiftRight<4>(bytes);
  const auto codes = hn::InterleaveLower(d8, low, high);
  const auto values =
      hn::BitCast(di8, hn::TableLookupBytes(hn::Load(d8, kTable), codes));
  const hn::Rebind<int32_t, DF> d32;
  Vec16 r;
#if HWY_MAX_BYTES >= 64
  r.part[0] = hn::ConvertTo(DF(), hn::PromoteTo(d32, values));
#else
  HWY_ALIGN int8_t spill[16];
  hn::Store(values, di8, spill);
  const hn::Rebind<int8_t, DF> dpart;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = hn::ConvertTo(
        DF(), hn::PromoteTo(d32, hn::LoadU(dpart, spill + p * kLanes)));
  }
#endif
  return r;
#endif
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE float Fold(const Vec16& v) {
  float lane[16];
  Store16(v, lane);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lane[i] += lane[i + half];
    }
  }
  return lane[0];
}

HWY_INLINE void StoreFoldFour(const Vec16& a, const Vec16& b, const Vec16& c,
                              const Vec16& d, float* out) {
  out[0] = Fold(a);
  out[1] = Fold(b);
  out[2] = Fold(c);
  out[3] = Fold(d);
}

#else

using DF4 = hn::FixedTag<float, 4>;
using VF4 = hn::Vec<DF4>;

// Lane i += lane i + 8, then lane i += lane i + 4.
HWY_INLINE VF4 FoldTo4(const Vec16& v) {
#if HWY_MAX_BYTES >= 64
  const hn::FixedTag<float, 8> d8;
  const auto half =
      hn::Add(hn::LowerHalf(d8, v.part[0]), hn::UpperHalf(d8, v.part[0]));
  return hn::Add(hn::LowerHalf(DF4(), half), hn::UpperHalf(DF4(), half));
#elif HWY_MAX_BYTES == 32
  const auto half = hn::Add(v.part[0], v.part[1]);
  return hn::Add(hn::LowerHalf(DF4(), half), hn::UpperHalf(DF4(), half));
#else
  return hn::Add(hn::Add(v.part[0], v.part[2]), hn::Add(v.part[1], v.part[3]));
#endif
}

// (0 + 2) + (1 + 3): the rest of the fold.
HWY_INLINE float Fold4(VF4 v) {
  const VF4 pair = hn::Add(v, hn::ConcatUpperUpper(DF4(), v, v));
  return hn::GetLane(pair) + hn::ExtractLane(pair, 1);
}

HWY_INLINE float Fold(const Vec16& v) { return Fold4(FoldTo4(v)); }

// Four folds at once, the same bits as Fold of each.
HWY_INLINE void StoreFoldFour(const Vec16& a, const Vec16& b, const Vec16& c,
                              const Vec16& d, float* out) {
  const DF4 d4;
  const VF4 ra = FoldTo4(a);
  const VF4 rb = FoldTo4(b);
  const VF4 rc = FoldTo4(c);
  const VF4 rd = FoldTo4(d);
  const VF4 ab =
      hn::Add(hn::InterleaveLower(d4, ra, rb), hn::InterleaveUpper(d4, ra, rb));
  const VF4 cd =
      hn::Add(hn::InterleaveLower(d4, rc, rd), hn::InterleaveUpper(d4, rc, rd));
  hn::StoreU(hn::Add(hn::ConcatLowerLower(d4, cd, ab),
                     hn::ConcatUpperUpper(d4, cd, ab)),
             d4, out);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#endif  // BATON_KERNELS_INTERNAL_VEC16_INL_H_
