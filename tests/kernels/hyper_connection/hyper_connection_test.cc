#include "kernels/include/hyper_connection.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

// model.md A2.
std::vector<float> SpecMixes() {
  std::vector<float> m;
  for (int i = 0; i < 24; ++i) {
    m.push_back(static_cast<float>((7 * i) % 11 - 5) / 4.0f);
  }
  return m;
}
std::vector<float> SpecBase() {
  std::vector<float> base;
  for (int i = 0; i < 24; ++i) {
    base.push_back(static_cast<float>((3 * i) % 5 - 2) / 8.0f);
  }
  return base;
}
const std::vector<float> kScale = {0.5f, 0.25f, 1.0f};

TEST(HyperConnectionTest, SinkhornMatchesTheSpecification) {
  std::vector<float> pre(4), post(4), comb(16);
  HyperMix(SpecMixes().data(), kScale.data(), SpecBase().data(), 4, 20, 1e-6f,
           pre.data(), post.data(), comb.data());
  const std::vector<float> want_pre = {0.2942160f, 0.5926676f, 0.4073344f,
                                       0.7057860f};
  const std::vector<float> want_post = {1.0312398f, 0.7846737f, 1.1853332f,
                                        0.9375813f};
  const std::vector<float> want_comb = {
      0.2036819f, 0.4499759f, 0.1908420f, 0.1554992f, 0.2647063f, 0.0698441f,
      0.4633610f, 0.2020876f, 0.1747298f, 0.3860143f, 0.3058589f, 0.1333961f,
      0.3568810f, 0.0941647f, 0.0399371f, 0.5090161f};
  // Given to 7 decimals; 20 iterations in fp32 cost a few units of 2^-24.
  const float limit = 4e-7f;
  for (size_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(pre[j], want_pre[j], limit) << j;
    EXPECT_NEAR(post[j], want_post[j], limit) << j;
  }
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(comb[i], want_comb[i], limit) << i;
  }
}

struct Case {
  int32_t tokens = 3;
  int32_t hc = 4;
  int32_t dim = 0;
  std::vector<float> streams, fn, scale, base, mixed, pre, post, comb, work;

  Case(int32_t num_tokens, int32_t streams_count, int32_t width)
      : tokens(num_tokens), hc(streams_count), dim(width) {
    const auto n = static_cast<size_t>(tokens);
    const auto s = static_cast<size_t>(hc);
    const auto d = static_cast<size_t>(dim);
    streams = RandomFloats(n * s * d, 1);
    fn = RandomFloats((2 + s) * s * s * d, 2, 0.05f);
    scale = kScale;
    base = RandomFloats((2 + s) * s, 3, 0.5f);
    mixed.resize(n * d);
    pre.resize(n * s);
    post.resize(n * s);
    comb.resize(n * s * s);
    work.resize(static_cast<size_t>(HyperWorkspaceFloats(tokens, hc)));
  }
  HyperPreParams Pre() {
    HyperPreParams p;
    p.streams = streams.data();
    p.token_stride = hc * dim;
    p.fn = fn.data();
    p.scale = scale.data();
    p.base = base.data();
    p.tokens = tokens;
    p.hc_mult = hc;
    p.dim = dim;
    p.mixed = mixed.data();
    p.mixed_row_stride = dim;
    p.pre = pre.data();
    p.post = post.data();
    p.comb = comb.data();
    p.workspace = work.data();
    return p;
  }
  HyperPostParams Post(const float* y, float* out) const {
    HyperPostParams p;
    p.y = y;
    p.y_row_stride = dim;
    p.streams = streams.data();
    p.token_stride = hc * dim;
    p.post = post.data();
    p.comb = comb.data();
    p.out = out;
    p.out_token_stride = hc * dim;
    p.tokens = tokens;
    p.hc_mult = hc;
    p.dim = dim;
    return p;
  }
};

TEST(HyperConnectionTest, CpuPreAgreesWithTheReference) {
  for (const auto& [hc, dim] : std::vector<std::pair<int32_t, int32_t>>{
           {4, 256}, {4, 24}, {2, 17}, {1, 16}, {4, 4096}}) {
    Case ref(3, hc, dim);
    Case cpu(3, hc, dim);
    HyperPreRef(ref.Pre());
    SerialParallel serial;
    HyperPreCpu(cpu.Pre(), serial);
    // m carries the error of a dot over hc * dim values in 16 lanes, relative
    // to the norms; sigmoid and softmax have slope at most 1.
    const float limit = (static_cast<float>(hc * dim) / 16 + 16) * kEpsilon * 4;
    for (size_t i = 0; i < ref.pre.size(); ++i) {
      EXPECT_NEAR(cpu.pre[i], ref.pre[i], limit);
      EXPECT_NEAR(cpu.post[i], ref.post[i], 2 * limit);
    }
    for (size_t i = 0; i < ref.comb.size(); ++i) {
      EXPECT_NEAR(cpu.comb[i], ref.comb[i], limit);
    }
    for (size_t i = 0; i < ref.mixed.size(); ++i) {
      EXPECT_NEAR(cpu.mixed[i], ref.mixed[i],
                  limit * 4 * static_cast<float>(hc));  // |x| < 4
    }
  }
}

TEST(HyperConnectionTest, PostUsesTheFirstIndexOfCombAsInput) {
  Case c(1, 2, 1);
  c.streams = {10.0f, 20.0f};
  c.post = {1.0f, 2.0f};
  c.comb = {1.0f, 3.0f, 5.0f, 7.0f};  // [input][output]
  const float y = 100.0f;
  std::vector<float> out(2);
  HyperPostRef(c.Post(&y, out.data()));
  EXPECT_EQ(out[0], 100.0f + 10.0f * 1.0f + 20.0f * 5.0f);
  EXPECT_EQ(out[1], 200.0f + 10.0f * 3.0f + 20.0f * 7.0f);
}

TEST(HyperConnectionTest, CpuPostHasTheBitsOfTheReferenceAlsoInPlace) {
  for (const int32_t dim : {1, 15, 16, 33, 256}) {
    Case c(40, 4, dim);
    HyperPreRef(c.Pre());
    const auto y = RandomFloats(static_cast<size_t>(40 * dim), 9);
    std::vector<float> want(c.streams.size());
    HyperPostRef(c.Post(y.data(), want.data()));
    ChunkedParallel parallel(3);
    for (const int64_t target : FmaTargets()) {
      const ScopedTarget scoped(target);
      Case in_place = c;
      HyperPostCpu(in_place.Post(y.data(), in_place.streams.data()), parallel);
      EXPECT_TRUE(SameBits(in_place.streams, want)) << dim;
    }
  }
}

TEST(HyperConnectionTest, ATokenHasTheSameBitsInEveryBatchSplitAndTarget) {
  Case first(90, 4, 264);
  SerialParallel serial;
  HyperPreCpu(first.Pre(), serial);
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      Case c(90, 4, 264);
      ChunkedParallel parallel(chunks);
      HyperPreCpu(c.Pre(), parallel);
      EXPECT_TRUE(SameBits(c.mixed, first.mixed));
      EXPECT_TRUE(SameBits(c.comb, first.comb));
      // One token alone.
      Case one(90, 4, 264);
      HyperPreParams p = one.Pre();
      p.streams += 41 * p.token_stride;
      p.tokens = 1;
      HyperPreCpu(p, parallel);
      EXPECT_TRUE(
          SameBits(one.mixed.data(), first.mixed.data() + 41 * 264, 264));
    }
  }
}

TEST(HyperConnectionTest, HeadMixesWithSigmoidWeights) {
  Case c(3, 4, 48);
  c.fn = RandomFloats(4 * 4 * 48, 2, 0.05f);
  std::vector<float> want(3 * 48);
  std::vector<float> got(3 * 48);
  HyperHeadParams p;
  p.streams = c.streams.data();
  p.token_stride = 4 * 48;
  p.fn = c.fn.data();
  p.scale = c.scale.data();
  p.base = c.base.data();
  p.tokens = 3;
  p.dim = 48;
  p.z = want.data();
  p.z_row_stride = 48;
  p.workspace = c.work.data();
  HyperHeadRef(p);
  p.z = got.data();
  SerialParallel serial;
  HyperHeadCpu(p, serial);
  for (size_t t = 0; t < 3; ++t) {
    // The formula of model.md 5.4, written out in double.
    const float* x = c.streams.data() + t * 192;
    double square = 0.0;
    for (size_t i = 0; i < 192; ++i) {
      square += double{x[i]} * double{x[i]};
    }
    std::vector<double> z(48, 0.0);
    for (size_t j = 0; j < 4; ++j) {
      double m = 0.0;
      for (size_t i = 0; i < 192; ++i) {
        m += double{c.fn[j * 192 + i]} * double{x[i]};
      }
      m /= std::sqrt(square / 192 + 1e-6);
      const double pre =
          1.0 / (1.0 + std::exp(-(m * 0.5 + double{c.base[j]}))) + 1e-6;
      for (size_t i = 0; i < 48; ++i) {
        z[i] += pre * double{x[j * 48 + i]};
      }
    }
    for (size_t i = 0; i < 48; ++i) {
      // Sums of 192 terms in fp32 against double, |z| < 16.
      EXPECT_NEAR(want[t * 48 + i], z[i], 16 * 16 * kEpsilon);
      EXPECT_NEAR(got[t * 48 + i], z[i], 16 * 16 * kEpsilon);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
