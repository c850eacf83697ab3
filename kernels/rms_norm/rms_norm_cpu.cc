#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm_cpu.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/include/rms_norm.h"
#include "kernels/internal/vec16-inl.h"
#include "kernels/rms_norm/rms_norm_check.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {

void NormRow(const RmsNormParams& params, int64_t row) {
  const float* x = params.x + row * params.x_row_stride;
  float* y = params.y + row * params.y_row_stride;
  const auto* weight = reinterpret_cast<const uint8_t*>(params.weight);
  const int64_t dim = params.dim;
  const int64_t full = dim & ~int64_t{15};
  Vec16 sum = Zero16();
  for (int64_t i = 0; i < full; i += 16) {
    const Vec16 v = Load16(x + i);
    sum = MulAdd16(v, v, sum);
  }
  if (full < dim) {
    const Vec16 v = LoadPadded16(x + full, dim - full);
    sum = MulAdd16(v, v, sum);
  }
  const float mean = Fold(sum) / static_cast<float>(dim);
  const float factor = 1.0f / std::sqrt(mean + params.eps);
  const Vec16 factor16 = Set16(factor);
  for (int64_t i = 0; i < full; i += 16) {
    Vec16 v = Mul16(Load16(x + i), factor16);
    if (weight != nullptr) {
      v = Mul16(v, LoadBf16(weight + 2 * i));
    }
    Store16(v, y + i);
  }
  for (int64_t i = full; i < dim; ++i) {
    y[i] = x[i] * factor;
    if (weight != nullptr) {
      uint16_t bits;
      std::memcpy(&bits, weight + 2 * i, sizeof(bits));
      y[i] *= F32FromBf16(bits);
    }
  }
}

void NormRows(const RmsNormParams& params, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    NormRow(params, r);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(NormRows);

void RmsNormCpu(const RmsNormParams& params, Parallel& parallel) {
  CheckRmsNorm(params);
  constexpr int64_t kMinParallelValues = 1 << 16;
  const auto run = [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormRows)(params, begin, end);
  };
  if (int64_t{params.rows} * params.dim < kMinParallelValues) {
    run(0, params.rows);
  } else {
    parallel.For(params.rows, run);
  }
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
