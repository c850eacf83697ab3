#include "kernels/include/quantize.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/include/numeric.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

TEST(QuantizeTest, ScaleExponentsMatchTheSpecification) {  // model.md A3
  EXPECT_EQ(ActQuantExponent(1e-4f), -22);
  EXPECT_EQ(ActQuantExponent(0.0f), -22);
  EXPECT_EQ(ActQuantExponent(0.875f), -9);
  EXPECT_EQ(ActQuantExponent(7.0f), -6);
  EXPECT_EQ(ActQuantExponent(448.0f), 0);
  EXPECT_EQ(ActQuantExponent(448.5f), 1);
  EXPECT_EQ(ActQuantExponent(896.0f), 1);
  EXPECT_EQ(Fp4ActQuantExponent(3.0f), -1);
  EXPECT_EQ(Fp4ActQuantExponent(6.0f), 0);
  EXPECT_EQ(Fp4ActQuantExponent(6.01f), 1);
  EXPECT_EQ(Fp4ActQuantExponent(12.0f), 1);
  EXPECT_EQ(Fp4ActQuantExponent(0.0f), -126);
}

TEST(QuantizeTest, Fp8BlockMatchesTheSpecification) {  // model.md A3
  std::vector<float> x(64);
  for (int j = 0; j < 64; ++j) {
    x[static_cast<size_t>(j)] =
        RoundToBf16(static_cast<float>((j - 31) * 0.37));
  }
  std::vector<uint8_t> codes(64);
  uint8_t scale = 0;
  ActQuantRow(x.data(), 64, 64, codes.data(), &scale);
  EXPECT_EQ(scale, 127 - 5);
  const std::vector<float> first = {-384, -352, -352, -320};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(F32FromE4m3(codes[i]), first[i]);
  }
  EXPECT_EQ(F32FromE4m3(codes[61]), 352);
  EXPECT_EQ(F32FromE4m3(codes[62]), 384);
  EXPECT_EQ(F32FromE4m3(codes[63]), 384);
  std::vector<float> simulated(64);
  ActQuantSimulateRow(x.data(), 64, 64, simulated.data());
  const std::vector<float> values = {-12, -11, -11, -10};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(simulated[i], values[i]);
  }
}

TEST(QuantizeTest, Fp4BlockMatchesTheSpecification) {  // model.md A3
  std::vector<float> x(32);
  for (int j = 0; j < 32; ++j) {
    x[static_cast<size_t>(j)] =
        RoundToBf16(static_cast<float>((j - 15) * 0.19));
  }
  std::vector<uint8_t> codes(16);
  uint8_t scale = 0;
  Fp4ActQuantRow(x.data(), 32, codes.data(), &scale);
  EXPECT_EQ(scale, 127);
  const std::vector<float> first = {-3, -3, -2, -2, -2, -2};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(F32FromE2m1(E2m1Nibble(codes.data(), i)),
              first[static_cast<size_t>(i)]);
  }
  const std::vector<float> last = {2, 3, 3, 3};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(F32FromE2m1(E2m1Nibble(codes.data(), 28 + i)),
              last[static_cast<size_t>(i)]);
  }
}

TEST(QuantizeTest, SimulationEqualsTheStoredCodesAndIsExactInBf16) {
  for (const int64_t n : {1, 63, 64, 65, 448, 128 + 17}) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(n), 7, 3.0f);
    std::vector<float> simulated(x.size());
    std::vector<uint8_t> codes(x.size());
    std::vector<uint8_t> scales(x.size());
    ActQuantRow(x.data(), n, 64, codes.data(), scales.data());
    ActQuantSimulateRow(x.data(), n, 64, simulated.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const float exact = F32FromE4m3(codes[i]) * F32FromE8m0(scales[i / 64]);
      ASSERT_EQ(Bits(simulated[i]), Bits(exact)) << n << " " << i;
    }
    // Simulating again changes nothing: rows may be re-encoded freely.
    std::vector<float> again(simulated);
    ActQuantSimulateRow(again.data(), n, 64, again.data());
    EXPECT_TRUE(SameBits(again, simulated));
  }
}

TEST(QuantizeTest, Fp4SimulationEqualsTheStoredCodes) {
  std::vector<float> x = RandomFloats(128, 9, 5.0f);
  std::vector<float> simulated(128);
  std::vector<uint8_t> codes(64);
  std::vector<uint8_t> scales(4);
  Fp4ActQuantRow(x.data(), 128, codes.data(), scales.data());
  Fp4ActQuantSimulateRow(x.data(), 128, simulated.data());
  for (int64_t i = 0; i < 128; ++i) {
    EXPECT_EQ(simulated[static_cast<size_t>(i)],
              F32FromE2m1(E2m1Nibble(codes.data(), i)) *
                  F32FromE8m0(scales[static_cast<size_t>(i / 32)]));
  }
}

TEST(QuantizeTest, ABlockOfZerosStaysZero) {
  std::vector<float> x(64, 0.0f);
  ActQuantSimulateRow(x.data(), 64, 64, x.data());
  EXPECT_EQ(x, std::vector<float>(64, 0.0f));
  Fp4ActQuantSimulateRow(x.data(), 64, x.data());
  EXPECT_EQ(x, std::vector<float>(64, 0.0f));
}

TEST(QuantizeTest, HadamardMatchesTheSpecification) {  // model.md A4
  std::vector<float> x(128);
  for (int j = 0; j < 128; ++j) {
    x[static_cast<size_t>(j)] = static_cast<float>(j) / 128.0f;
  }
  HadamardRow(x.data(), 128);
  const std::vector<std::pair<size_t, float>> want = {
      {0, 5.612660f},   {1, -0.044194f}, {2, -0.088388f},  {3, 0.0f},
      {4, -0.176777f},  {8, -0.353553f}, {16, -0.707107f}, {32, -1.414214f},
      {64, -2.828427f}, {127, 0.0f}};
  for (const auto& [index, value] : want) {
    EXPECT_NEAR(x[index], value, 1e-6f) << index;  // given to 6 decimals
  }
}

TEST(QuantizeTest, HadamardTwiceIsTheIdentity) {
  const std::vector<float> x = RandomFloats(128, 3);
  std::vector<float> y = x;
  HadamardRow(y.data(), 128);
  HadamardRow(y.data(), 128);
  for (size_t i = 0; i < x.size(); ++i) {
    // Two passes of 7 additions over values of norm |x|.
    EXPECT_NEAR(y[i], x[i], 20 * 12 * kEpsilon);
  }
}

}  // namespace
}  // namespace baton::kernels
