#include "kernels/include/numeric.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/include/row_layout.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

// Finite magnitudes of a format in ascending code order, by its definition.
std::vector<double> E4m3Magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3;
    const int mantissa = code & 7;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

// Nearest value, ties to the even code, saturating.
uint8_t NearestCode(const std::vector<double>& magnitudes, double v) {
  size_t best = 0;
  for (size_t i = 1; i < magnitudes.size(); ++i) {
    const double now = std::fabs(magnitudes[i] - v);
    const double before = std::fabs(magnitudes[best] - v);
    if (now < before || (now == before && i % 2 == 0)) {
      best = i;
    }
  }
  return static_cast<uint8_t>(best);
}

// Each magnitude, the middles between neighbours, and one fp32 step to both
// sides of each of these.
std::vector<float> Probes(const std::vector<double>& magnitudes) {
  std::vector<float> probes;
  const auto add = [&](float v) {
    probes.push_back(v);
    probes.push_back(std::nextafter(v, 1e30f));
    probes.push_back(std::fabs(std::nextafter(v, -1e30f)));
  };
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    add(static_cast<float>(magnitudes[i]));
    if (i > 0) {
      add(static_cast<float>((magnitudes[i] + magnitudes[i - 1]) / 2));
    }
  }
  const double top = magnitudes.back();
  add(static_cast<float>(top * 1.05));
  add(1e30f);
  add(std::numeric_limits<float>::infinity());
  return probes;
}

TEST(NumericTest, E4m3DecodesEveryCode) {
  const std::vector<double> magnitudes = E4m3Magnitudes();
  for (int code = 0; code < 127; ++code) {
    const auto m = static_cast<float>(magnitudes[static_cast<size_t>(code)]);
    EXPECT_EQ(Bits(F32FromE4m3(static_cast<uint8_t>(code))), Bits(m));
    EXPECT_EQ(Bits(F32FromE4m3(static_cast<uint8_t>(code | 128))), Bits(-m));
  }
  EXPECT_TRUE(std::isnan(F32FromE4m3(0x7F)));
  EXPECT_TRUE(std::isnan(F32FromE4m3(0xFF)));
  EXPECT_EQ(F32FromE4m3(0x7E), kE4m3Max);
}

TEST(NumericTest, E4m3EncodesToTheNearestEvenCode) {
  const std::vector<double> magnitudes = E4m3Magnitudes();
  for (const float v : Probes(magnitudes)) {
    const uint8_t want = NearestCode(magnitudes, std::fmin(v, 448.0f));
    EXPECT_EQ(E4m3FromF32(v), want) << v;
    EXPECT_EQ(E4m3FromF32(-v), want | 128) << v;
  }
  EXPECT_EQ(E4m3FromF32(kNan) & 0x7F, 0x7F);
}

TEST(NumericTest, E2m1FollowsTheTableOfTheSpecification) {
  const std::vector<double> magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t code = 0; code < 8; ++code) {
    const auto m = static_cast<float>(magnitudes[code]);
    EXPECT_EQ(F32FromE2m1(static_cast<uint8_t>(code)), m);
    EXPECT_EQ(Bits(F32FromE2m1(static_cast<uint8_t>(code + 8))), Bits(-m));
  }
  for (const float v : Probes(magnitudes)) {
    const uint8_t want = NearestCode(magnitudes, std::fmin(v, 6.0f));
    EXPECT_EQ(E2m1FromF32(v), want) << v;
    EXPECT_EQ(E2m1FromF32(-v), want | 8) << v;
  }
  // model.md 3.7: the boundaries, ties to the code with even mantissa.
  EXPECT_EQ(E2m1FromF32(0.25f), 0);
  EXPECT_EQ(E2m1FromF32(0.75f), 2);
  EXPECT_EQ(E2m1FromF32(1.25f), 2);
  EXPECT_EQ(E2m1FromF32(1.75f), 4);
  EXPECT_EQ(E2m1FromF32(2.5f), 4);
  EXPECT_EQ(E2m1FromF32(3.5f), 6);
  EXPECT_EQ(E2m1FromF32(5.0f), 6);
}

TEST(NumericTest, NibblesStartWithTheLowHalf) {
  const uint8_t packed[2] = {0x21, 0x43};
  for (int64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(E2m1Nibble(packed, k), k + 1);
  }
}

TEST(NumericTest, E8m0IsAPowerOfTwoForEveryByte) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(double{F32FromE8m0(static_cast<uint8_t>(code))},
              std::ldexp(1.0, code - 127));
    EXPECT_EQ(E8m0FromExponent(code - 127), code);
  }
  EXPECT_TRUE(std::isnan(F32FromE8m0(255)));
}

TEST(NumericTest, Bf16RoundsEveryFiniteValueToNearestEven) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float v = F32FromBf16(static_cast<uint16_t>(code));
    if (std::isnan(v)) {
      EXPECT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(v))));
      continue;
    }
    ASSERT_EQ(Bf16FromF32(v), code);
    if ((code & 0x7FFFu) >= 0x7F80u) {
      continue;  // infinity has no next value
    }
    const uint32_t half = (code << 16) | 0x8000u;
    const auto up = static_cast<uint16_t>(code + 1);
    const auto even = code % 2 == 0 ? static_cast<uint16_t>(code) : up;
    ASSERT_EQ(Bf16FromF32(std::bit_cast<float>(half)), even);
    ASSERT_EQ(Bf16FromF32(std::bit_cast<float>(half - 1)), code);
    ASSERT_EQ(Bf16FromF32(std::bit_cast<float>(half + 1)), up);
  }
}

TEST(NumericTest, Pow2CeilKeepsPowersAndRoundsOthersUp) {
  for (int e = -126; e < 127; ++e) {
    const float power = std::ldexp(1.0f, e);
    EXPECT_EQ(Pow2CeilExponent(power), e);
    EXPECT_EQ(Pow2CeilExponent(std::nextafter(power, 1e38f)), e + 1);
    EXPECT_EQ(Pow2Ceil(std::nextafter(2 * power, 0.0f)), 2 * power);
  }
  EXPECT_EQ(Pow2(-149), std::numeric_limits<float>::denorm_min());
}

TEST(RowLayoutTest, EncodesRowsAndFindsThemInPagesAndRings) {
  const std::vector<float> values = {1.0f, -2.5f, 0.3f};
  std::vector<float> back(3);
  std::vector<unsigned char> row(13);
  EncodeRow(values.data(), 3, RowEncoding::kF32, row.data() + 1);
  DecodeRow(row.data() + 1, 3, RowEncoding::kF32, back.data());
  EXPECT_TRUE(SameBits(values, back));
  EncodeRow(values.data(), 3, RowEncoding::kBf16, row.data() + 1);
  DecodeRow(row.data() + 1, 3, RowEncoding::kBf16, back.data());
  EXPECT_EQ(back[2], RoundToBf16(0.3f));

  unsigned char pool[64];
  const int32_t table[] = {3, 0, 1};
  RowLayout layout{pool, 16, 4, table, 4};
  EXPECT_EQ(RowAddress(layout, 0), pool + 48);
  EXPECT_EQ(RowAddress(layout, 5), pool + 4);
  EXPECT_EQ(RowAddress(layout, 11), pool + 28);
  layout.block_table = nullptr;
  EXPECT_EQ(RowAddress(layout, 5), pool + 4);
  EXPECT_EQ(RowAddress(layout, 11), pool + 12);
}

}  // namespace
}  // namespace baton::kernels
