#include "kernels/include/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/weight_testing.h"

namespace baton::kernels {
namespace {

struct Fixture {
  int32_t tokens, top_k, num_experts, dim, hidden;
  std::vector<TestWeight> store;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  std::vector<float> x, weights, y;
  std::vector<int32_t> ids;
  std::vector<unsigned char> workspace;

  Fixture(int32_t t, int32_t k, int32_t e, int32_t d, int32_t h,
          WeightEncoding encoding)
      : tokens(t), top_k(k), num_experts(e), dim(d), hidden(h) {
    store.reserve(static_cast<size_t>(3 * (e + 1)));
    for (int32_t i = 0; i < e; ++i) {
      experts.push_back(Make(encoding, static_cast<uint32_t>(3 * i)));
    }
    shared = Make(WeightEncoding::kFp8BlockE8m0, 1000);
    x = RandomFloats(static_cast<size_t>(t * d), 1, 20.0f);
    weights = RandomFloats(static_cast<size_t>(t * k), 2, 0.5f);
    for (int32_t i = 0; i < t * k; ++i) {
      ids.push_back((i * 5 + i / k) % e);
    }
    y.assign(static_cast<size_t>(t * d), kNan);
    workspace.assign(
        static_cast<size_t>(ExpertsWorkspaceBytes({t, k, e, d, h})), 0xFF);
  }
  ExpertWeights Make(WeightEncoding encoding, uint32_t seed) {
    const auto add = [&](int32_t rows, int32_t cols, uint32_t s) {
      store.push_back(MakeWeight(encoding, rows, cols, s));
      return store.back().weight;
    };
    return {add(hidden, dim, seed), add(dim, hidden, seed + 1),
            add(hidden, dim, seed + 2)};
  }
  ExpertsParams Params() {
    ExpertsParams p;
    p.x = x.data();
    p.x_row_stride = dim;
    p.expert_ids = ids.data();
    p.expert_weights = weights.data();
    p.experts = experts.data();
    p.shared = &shared;
    p.tokens = tokens;
    p.top_k = top_k;
    p.num_experts = num_experts;
    p.dim = dim;
    p.hidden = hidden;
    p.limit = 10.0f;
    p.y = y.data();
    p.y_row_stride = dim;
    p.workspace = workspace.data();
    return p;
  }
};

float Largest(const std::vector<float>& v) {
  float top = 0.0f;
  for (const float f : v) {
    top = std::max(top, std::fabs(f));
  }
  return top;
}

TEST(ExpertsTest, CpuAgreesWithTheReference) {
  for (const WeightEncoding encoding :
       {WeightEncoding::kNvfp4, WeightEncoding::kMxfp4, WeightEncoding::kBf16,
        WeightEncoding::kFp8BlockF32}) {
    for (const int32_t tokens : {0, 1, 2, 7}) {
      Fixture f(tokens, 3, 8, 64, 50, encoding);
      ExpertsParams p = f.Params();
      ExpertsRef(p);
      const std::vector<float> want = f.y;
      f.y.assign(f.y.size(), kNan);
      SerialParallel serial;
      ExpertsCpu(f.Params(), serial);
      // Two products of at most 64 terms and a sigmoid, relative to the largest
      // value: cancellation inside one element is covered by it.
      const float limit = 64 * kEpsilon * 4 * Largest(want);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(f.y[i], want[i], limit)
            << EncodingName(encoding) << " " << i;
      }
    }
  }
}

TEST(ExpertsTest, ClampsTheGateAboveAndTheUpBranchOnBothSides) {
  // One expert of one hidden unit with weights of 1: a = x0, b = x1.
  const std::vector<float> w1 = {1.0f, 0.0f};
  const std::vector<float> w3 = {0.0f, 1.0f};
  const std::vector<float> w2 = {1.0f, 0.0f};
  ExpertWeights e;
  e.w1 = {WeightEncoding::kF32, w1.data(), nullptr, 1.0f, 1, 2};
  e.w3 = {WeightEncoding::kF32, w3.data(), nullptr, 1.0f, 1, 2};
  e.w2 = {WeightEncoding::kF32, w2.data(), nullptr, 1.0f, 2, 1};
  const auto run = [&](float a, float b, float limit, float weight,
                       bool shared) {
    std::vector<float> ref(2), cpu(2);
    const std::vector<float> x = {a, b};
    const int32_t id = 0;
    std::vector<unsigned char> workspace(
        static_cast<size_t>(ExpertsWorkspaceBytes({1, 1, 1, 2, 1})));
    ExpertsParams p;
    p.x = x.data();
    p.expert_ids = &id;
    p.expert_weights = &weight;
    p.experts = &e;
    p.shared = shared ? &e : nullptr;
    p.tokens = p.top_k = p.num_experts = p.hidden = 1;
    p.dim = 2;
    p.limit = limit;
    p.y = ref.data();
    p.workspace = workspace.data();
    ExpertsRef(p);
    p.y = cpu.data();
    SerialParallel serial;
    ExpertsCpu(p, serial);
    EXPECT_NEAR(cpu[0], ref[0], 8 * kEpsilon * std::fabs(ref[0]));
    EXPECT_EQ(cpu[1], 0.0f);
    return double{cpu[0]};
  };
  const auto silu = [](double a) { return a / (1.0 + std::exp(-a)); };
  const double r = 8 * double{kEpsilon};
  EXPECT_NEAR(run(20, 30, 10, 0.5f, false), silu(10) * 10 * 0.5, 50 * r);
  EXPECT_NEAR(run(20, -30, 10, 0.5f, false), silu(10) * -10 * 0.5, 50 * r);
  EXPECT_NEAR(run(-20, 3, 10, 1.0f, false), silu(-20) * 3, 1e-7 * r);
  EXPECT_NEAR(run(20, 30, 0, 1.0f, false), silu(20) * 30, 600 * r);
  // The shared expert has weight 1 and the same clamp.
  EXPECT_NEAR(run(20, 30, 10, 0.5f, true), silu(10) * 10 * 1.5, 150 * r);
  EXPECT_TRUE(std::isfinite(run(-1000, 3, 10, 1.0f, false)));
}

TEST(ExpertsTest, AnExpertChosenTwiceCountsTwice) {
  Fixture f(1, 2, 4, 32, 16, WeightEncoding::kBf16);
  f.ids = {2, 2};
  f.weights = {0.25f, 0.5f};
  SerialParallel serial;
  ExpertsParams p = f.Params();
  p.shared = nullptr;
  ExpertsCpu(p, serial);
  const std::vector<float> twice = f.y;
  f.ids = {2, 1};
  f.weights = {0.75f, 0.0f};
  ExpertsCpu(p, serial);
  for (size_t i = 0; i < twice.size(); ++i) {
    EXPECT_NEAR(twice[i], f.y[i], 8 * kEpsilon * Largest(f.y));
  }
}

TEST(ExpertsTest, ATokenHasTheSameBitsInEveryBatchSplitAndTarget) {
  const int32_t tokens = 70;
  const int32_t dim = 128;
  Fixture all(tokens, 4, 16, dim, 72, WeightEncoding::kNvfp4);
  SerialParallel serial;
  ExpertsCpu(all.Params(), serial);
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      Fixture f(tokens, 4, 16, dim, 72, WeightEncoding::kNvfp4);
      ChunkedParallel parallel(chunks);
      ExpertsCpu(f.Params(), parallel);
      EXPECT_TRUE(SameBits(f.y, all.y));
      for (const int32_t t : {0, 13, 69}) {
        ExpertsParams p = f.Params();
        p.x += t * dim;
        p.expert_ids += t * 4;
        p.expert_weights += t * 4;
        p.tokens = 1;
        std::vector<float> one(dim);
        p.y = one.data();
        ExpertsCpu(p, parallel);
        EXPECT_TRUE(SameBits(one.data(), all.y.data() + t * dim, dim)) << t;
      }
    }
  }
}

TEST(ExpertsTest, TheOrderOfAChoiceListDoesNotChangeBits) {
  Fixture f(1, 4, 16, 64, 32, WeightEncoding::kNvfp4);
  f.ids = {9, 2, 14, 5};
  f.weights = {0.1f, 0.2f, 0.3f, 0.4f};
  SerialParallel serial;
  ExpertsCpu(f.Params(), serial);
  const std::vector<float> want = f.y;
  f.ids = {14, 9, 5, 2};
  f.weights = {0.3f, 0.1f, 0.4f, 0.2f};
  ExpertsCpu(f.Params(), serial);
  EXPECT_TRUE(SameBits(f.y, want));
}

}  // namespace
}  // namespace baton::kernels
