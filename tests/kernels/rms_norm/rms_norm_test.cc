#include "kernels/include/rms_norm.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/include/numeric.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

std::vector<uint16_t> Bf16Weights(int32_t dim) {
  std::vector<uint16_t> weight;
  for (const float v : RandomFloats(static_cast<size_t>(dim), 11)) {
    weight.push_back(Bf16FromF32(v));
  }
  return weight;
}

TEST(RmsNormTest, CpuAgreesWithTheReference) {
  for (const int32_t dim : {1, 15, 16, 17, 31, 128, 256, 512, 4096}) {
    for (const int32_t rows : {0, 1, 3}) {
      const int64_t stride = dim + 5;
      std::vector<float> x(static_cast<size_t>(rows * stride), kNan);
      for (int32_t r = 0; r < rows; ++r) {
        const auto values = RandomFloats(static_cast<size_t>(dim),
                                         static_cast<uint32_t>(r), 3.0f);
        std::copy(values.begin(), values.end(),
                  x.begin() + r * stride);  // the padding stays NaN
      }
      const auto weight = Bf16Weights(dim);
      std::vector<float> want(x.size(), 0.0f);
      std::vector<float> got(x.size(), 0.0f);
      for (const uint16_t* w : {weight.data(), (const uint16_t*)nullptr}) {
        RmsNormParams params{x.data(), stride, w,   want.data(),
                             stride,   rows,   dim, 1e-6f};
        RmsNormRef(params);
        params.y = got.data();
        SerialParallel serial;
        RmsNormCpu(params, serial);
        for (size_t i = 0; i < x.size(); ++i) {
          // The contract of rms_norm.h; 16 lanes cost nothing visible here.
          ASSERT_NEAR(got[i], want[i], 8 * kEpsilon * std::fabs(want[i]))
              << dim << " " << i;
        }
      }
    }
  }
}

TEST(RmsNormTest, ARowHasTheSameBitsInEveryBatchAndOnEveryTarget) {
  const int32_t dim = 520;
  const int32_t rows = 200;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(dim * rows), 1);
  const auto weight = Bf16Weights(dim);
  std::vector<float> first;
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      ChunkedParallel parallel(chunks);
      std::vector<float> y(x.size());
      RmsNormParams params{x.data(), dim,  weight.data(), y.data(),
                           dim,      rows, dim,           1e-6f};
      RmsNormCpu(params, parallel);
      if (first.empty()) {
        first = y;
      }
      EXPECT_TRUE(SameBits(y, first));
      std::vector<float> one(dim);
      params.rows = 1;
      params.x = x.data() + 77 * dim;
      params.y = one.data();
      RmsNormCpu(params, parallel);
      EXPECT_TRUE(SameBits(one.data(), first.data() + 77 * dim, dim));
    }
  }
}

TEST(RmsNormTest, WorksInPlace) {
  std::vector<float> x = RandomFloats(64, 5);
  std::vector<float> want(64);
  RmsNormParams params{x.data(), 64, nullptr, want.data(), 64, 1, 64, 1e-6f};
  SerialParallel serial;
  RmsNormCpu(params, serial);
  params.y = x.data();
  RmsNormCpu(params, serial);
  EXPECT_TRUE(SameBits(x, want));
}

TEST(RmsNormTest, ARowOfZerosStaysZero) {
  std::vector<float> x(32, 0.0f);
  SerialParallel serial;
  RmsNormCpu({x.data(), 32, nullptr, x.data(), 32, 1, 32, 1e-6f}, serial);
  EXPECT_EQ(x, std::vector<float>(32, 0.0f));
}

}  // namespace
}  // namespace baton::kernels
