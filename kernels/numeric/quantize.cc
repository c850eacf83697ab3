#include "kernels/include/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/include/numeric.h"
#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

constexpr int32_t kFp4Block = 32;

float MaxMagnitude(const float* x, int64_t n) {
  float amax = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
  }
  return amax;
}

// The scale of one block and the values divided by it, clamped. Dividing by a
// power of two equals multiplying by its inverse, but the inverse of the
// smallest scales is not representable, so this divides.
float Scaled(float value, float scale, float limit) {
  return std::clamp(value / scale, -limit, limit);
}

}  // namespace

int32_t ActQuantExponent(float amax) {
  return Pow2CeilExponent(std::max(amax, 1e-4f) * (1.0f / 448.0f));
}

int32_t Fp4ActQuantExponent(float amax) {
  const float floor = 6.0f * Pow2(-126);
  return Pow2CeilExponent(std::max(amax, floor) * (1.0f / 6.0f));
}

void ActQuantRow(const float* x, int64_t n, int32_t block, uint8_t* codes,
                 uint8_t* scales) {
  BATON_KERNEL_CHECK(block > 0, "act_quant: block is not positive");
  for (int64_t start = 0; start < n; start += block) {
    const int64_t count = std::min<int64_t>(block, n - start);
    const int32_t exponent = ActQuantExponent(MaxMagnitude(x + start, count));
    const float scale = Pow2(exponent);
    for (int64_t i = start; i < start + count; ++i) {
      codes[i] = E4m3FromF32(Scaled(x[i], scale, kE4m3Max));
    }
    scales[start / block] = E8m0FromExponent(exponent);
  }
}

void ActQuantSimulateRow(const float* x, int64_t n, int32_t block, float* out) {
  BATON_KERNEL_CHECK(block > 0, "act_quant: block is not positive");
  for (int64_t start = 0; start < n; start += block) {
    const int64_t count = std::min<int64_t>(block, n - start);
    const float scale = Pow2(ActQuantExponent(MaxMagnitude(x + start, count)));
    for (int64_t i = start; i < start + count; ++i) {
      const uint8_t code = E4m3FromF32(Scaled(x[i], scale, kE4m3Max));
      out[i] = RoundToBf16(F32FromE4m3(code) * scale);
    }
  }
}

void Fp4ActQuantRow(const float* x, int64_t n, uint8_t* codes,
                    uint8_t* scales) {
  BATON_KERNEL_CHECK(n % 2 == 0, "fp4_act_quant: odd number of values");
  for (int64_t start = 0; start < n; start += kFp4Block) {
    const int64_t count = std::min<int64_t>(kFp4Block, n - start);
    const int32_t exponent =
        Fp4ActQuantExponent(MaxMagnitude(x + start, count));
    const float scale = Pow2(exponent);
    for (int64_t i = start; i < start + count; i += 2) {
      const uint8_t even = E2m1FromF32(Scaled(x[i], scale, kE2m1Max));
      const uint8_t odd = E2m1FromF32(Scaled(x[i + 1], scale, kE2m1Max));
      codes[i / 2] = static_cast<uint8_t>((odd << 4) | even);
    }
    scales[start / kFp4Block] = E8m0FromExponent(exponent);
  }
}

void Fp4ActQuantSimulateRow(const float* x, int64_t n, float* out) {
  for (int64_t start = 0; start < n; start += kFp4Block) {
    const int64_t count = std::min<int64_t>(kFp4Block, n - start);
    const float scale =
        Pow2(Fp4ActQuantExponent(MaxMagnitude(x + start, count)));
    for (int64_t i = start; i < start + count; ++i) {
      const uint8_t code = E2m1FromF32(Scaled(x[i], scale, kE2m1Max));
      out[i] = RoundToBf16(F32FromE2m1(code) * scale);
    }
  }
}

void HadamardRow(float* x, int64_t n) {
  BATON_KERNEL_CHECK(n > 0 && (n & (n - 1)) == 0,
                     "hadamard: length is not a power of two");
  for (int64_t half = 1; half < n; half *= 2) {
    for (int64_t block = 0; block < n; block += 2 * half) {
      for (int64_t i = block; i < block + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const auto scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= scale;
  }
}

}  // namespace baton::kernels
