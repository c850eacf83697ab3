#include "kernels/include/rope.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

// model.md A1.
const std::vector<float> kYarn160000 = {1,
                                        0.687656045f,
                                        0.472870797f,
                                        0.325172454f,
                                        0.223606795f,
                                        0.153764561f,
                                        0.10573712f,
                                        0.0727107748f,
                                        0.0500000007f,
                                        0.0343828015f,
                                        0.0236435402f,
                                        0.0162586235f,
                                        0.0111803403f,
                                        0.00768822804f,
                                        0.00528685655f,
                                        0.00363553851f,
                                        0.00226562493f,
                                        0.00139680132f,
                                        0.000849689706f,
                                        0.000508081983f,
                                        0.000296977785f,
                                        0.000168179977f,
                                        9.08678412e-05f,
                                        4.54442306e-05f,
                                        1.95312532e-05f,
                                        5.37231244e-06f,
                                        3.69430336e-06f,
                                        2.5404097e-06f,
                                        1.74692821e-06f,
                                        1.20128561e-06f,
                                        8.260713e-07f,
                                        5.6805294e-07f};
const std::vector<float> kPlain10000 = {1,
                                        0.749894202f,
                                        0.562341332f,
                                        0.421696514f,
                                        0.316227764f,
                                        0.237137362f,
                                        0.177827939f,
                                        0.133352146f,
                                        0.100000001f,
                                        0.0749894157f,
                                        0.0562341288f,
                                        0.0421696492f,
                                        0.0316227786f,
                                        0.0237137359f,
                                        0.0177827943f,
                                        0.0133352149f,
                                        0.00999999978f,
                                        0.00749894232f,
                                        0.00562341325f,
                                        0.00421696482f,
                                        0.00316227786f,
                                        0.00237137382f,
                                        0.00177827943f,
                                        0.00133352145f,
                                        0.00100000005f,
                                        0.000749894185f,
                                        0.000562341302f,
                                        0.000421696488f,
                                        0.000316227786f,
                                        0.000237137385f,
                                        0.00017782794f,
                                        0.00013335215f};

void ExpectWithinTwoSteps(const std::vector<float>& got,
                          const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // The specification allows last-bit differences of powf, and its table has
    // nine digits.
    EXPECT_NEAR(got[i], want[i], 4 * kEpsilon * want[i]) << i;
  }
}

TEST(RopeTest, FrequenciesMatchTheSpecification) {
  RopeConfig yarn{160000.0, 64, true, 16.0, 32.0, 1.0, 65536};
  ExpectWithinTwoSteps(BuildRopeFrequencies(yarn), kYarn160000);
  RopeConfig plain;
  plain.theta = 10000.0;
  ExpectWithinTwoSteps(BuildRopeFrequencies(plain), kPlain10000);
}

TEST(RopeTest, YarnKeepsFastPairsAndDividesSlowOnes) {
  // The demo checkpoint's settings: the ramp ends inside the pairs.
  RopeConfig yarn{160000.0, 64, true, 4.0, 32.0, 1.0, 1024};
  RopeConfig plain = yarn;
  plain.yarn = false;
  const auto scaled = BuildRopeFrequencies(yarn);
  const auto base = BuildRopeFrequencies(plain);
  EXPECT_EQ(scaled[0], base[0]);
  EXPECT_EQ(scaled[31], base[31] / 4.0f);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_LE(scaled[i], base[i]);
    EXPECT_GE(scaled[i], base[i] / 4.0f * (1 - 4 * kEpsilon));
  }
}

struct Angles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

Angles MakeAngles(const std::vector<float>& frequencies,
                  const std::vector<int64_t>& positions) {
  Angles a;
  a.cosines.resize(frequencies.size() * positions.size());
  a.sines.resize(a.cosines.size());
  ComputeRopeAngles({frequencies.data(),
                     static_cast<int32_t>(frequencies.size()), positions.data(),
                     static_cast<int32_t>(positions.size()), a.cosines.data(),
                     a.sines.data()});
  return a;
}

TEST(RopeTest, AnglesRoundTheProductToFp32First) {
  const std::vector<float> frequencies = {0.687656045f};
  const std::vector<int64_t> positions = {0, 1, 999999};
  const Angles a = MakeAngles(frequencies, positions);
  for (size_t t = 0; t < positions.size(); ++t) {
    const float angle = static_cast<float>(positions[t]) * frequencies[0];
    EXPECT_NEAR(a.cosines[t], std::cos(double{angle}), 2 * kEpsilon);
    EXPECT_NEAR(a.sines[t], std::sin(double{angle}), 2 * kEpsilon);
  }
  // In double the product would be another angle: this must be visible.
  EXPECT_GT(
      std::fabs(std::cos(999999 * double{0.687656045f}) - double{a.cosines[2]}),
      1e-4);
}

TEST(RopeTest, RotatesInterleavedPairsOfTheLastDimsOnly) {
  const std::vector<int64_t> positions = {0, 5};
  const Angles a = MakeAngles({1.0f, 0.5f}, positions);
  std::vector<float> x = RandomFloats(2 * 3 * 8, 1);  // [2, 3, 8], rotary 4
  const std::vector<float> before = x;
  RopeParams params{x.data(),       24,   8, 2, 3, 8, 4, a.cosines.data(),
                    a.sines.data(), false};
  RopeRef(params);
  for (size_t t = 0; t < 2; ++t) {
    for (size_t h = 0; h < 3; ++h) {
      const float* in = before.data() + t * 24 + h * 8;
      const float* out = x.data() + t * 24 + h * 8;
      EXPECT_TRUE(SameBits(in, out, 4));
      for (size_t i = 0; i < 2; ++i) {
        const float c = a.cosines[t * 2 + i];
        const float s = a.sines[t * 2 + i];
        EXPECT_EQ(out[4 + 2 * i], in[4 + 2 * i] * c - in[5 + 2 * i] * s);
        EXPECT_EQ(out[5 + 2 * i], in[4 + 2 * i] * s + in[5 + 2 * i] * c);
      }
    }
  }
  params.inverse = true;
  RopeRef(params);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x[i], before[i], 8 * kEpsilon * 4);  // |x| < 4
  }
}

TEST(RopeTest, CpuHasTheBitsOfTheReferenceInEverySplit) {
  std::vector<int64_t> positions(100);
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int64_t>(i * 37);
  }
  const Angles a = MakeAngles(BuildRopeFrequencies(RopeConfig{}), positions);
  const std::vector<float> x = RandomFloats(100 * 8 * 128, 2);
  std::vector<float> want = x;
  RopeParams params{want.data(),      1024,           128,  100, 8, 128, 64,
                    a.cosines.data(), a.sines.data(), false};
  RopeRef(params);
  for (const int32_t chunks : {1, 2, 3}) {
    std::vector<float> got = x;
    params.x = got.data();
    ChunkedParallel parallel(chunks);
    RopeCpu(params, parallel);
    EXPECT_TRUE(SameBits(got, want));
  }
}

}  // namespace
}  // namespace baton::kernels
