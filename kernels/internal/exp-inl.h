// exp(x) for 16 lanes in fp32, about 1 ulp, element-wise (no result depends on
// a neighbouring lane). Below -87 the result is 0, above 88 it is infinite, so
// that a sigmoid far out is 0 as it is in the reference.
// Re-included once per target (Highway).
#if defined(BATON_KERNELS_INTERNAL_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BATON_KERNELS_INTERNAL_EXP_INL_H_
#undef BATON_KERNELS_INTERNAL_EXP_INL_H_
#else
#define BATON_KERNELS_INTERNAL_EXP_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"
#include "kernels/internal/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE VF ExpPart(VF x) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const auto tiny = hn::Lt(x, hn::Set(d, -87.0f));
  // Max and Min keep a NaN in x out of the conversion below; it is put back.
  const VF bounded = hn::Min(hn::Max(x, hn::Set(d, -87.0f)), hn::Set(d, 88.0f));
  const auto n =
      hn::NearestInt(hn::Mul(bounded, hn::Set(d, 1.44269504088896341f)));
  const VF nf = hn::ConvertTo(d, n);
  // r = x - n ln 2 with ln 2 in two parts; the first has trailing zeros.
  VF r = hn::NegMulAdd(nf, hn::Set(d, 0.693145751953125f), bounded);
  r = hn::NegMulAdd(nf, hn::Set(d, 1.42860682030941723e-6f), r);
  // Taylor on |r| <= 0.35: the first omitted term is r^8 / 8! < 1e-8.
  VF p = hn::Set(d, 1.0f / 5040.0f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto scale =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  const VF value =
      hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.0f)), hn::Set(d, HUGE_VALF),
                     hn::IfThenZeroElse(tiny, hn::Mul(p, scale)));
  return hn::IfThenElse(hn::Eq(x, x), value, x);
}

HWY_INLINE Vec16 Exp16(const Vec16& x) {
  Vec16 r;
  for (int p = 0; p < kParts; ++p) {
    r.part[p] = ExpPart(x.part[p]);
  }
  return r;
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#endif  // BATON_KERNELS_INTERNAL_EXP_INL_H_
