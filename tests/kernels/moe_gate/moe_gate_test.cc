#include "kernels/include/moe_gate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

double Probability(double z) {
  return std::sqrt(z > 20.0 ? z : std::log1p(std::exp(z)));
}

struct Result {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Result Gate(MoeGateParams p) {
  Result r;
  r.ids.resize(static_cast<size_t>(p.tokens * p.top_k));
  r.weights.resize(r.ids.size());
  p.expert_ids = r.ids.data();
  p.weights = r.weights.data();
  MoeGateRef(p);
  return r;
}

TEST(MoeGateTest, AgreesWithDoubleOnTenThousandTokens) {
  const int32_t experts = 16;
  const int32_t top_k = 4;
  const int32_t tokens = 10000;
  const auto logits = RandomFloats(experts * tokens, 1, 4.0f);
  const auto bias = RandomFloats(experts, 2, 0.3f);
  MoeGateParams p;
  p.logits = logits.data();
  p.logits_row_stride = experts;
  p.bias = bias.data();
  p.tokens = tokens;
  p.experts = experts;
  p.top_k = top_k;
  p.scaling_factor = 1.5f;
  const Result got = Gate(p);
  int64_t close_calls = 0;
  for (size_t t = 0; t < tokens; ++t) {
    std::vector<double> prob(experts), score(experts);
    std::vector<int32_t> order(experts);
    for (size_t e = 0; e < experts; ++e) {
      prob[e] = Probability(logits[t * experts + e]);
      score[e] = prob[e] + double{bias[e]};
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    double margin = 1.0;  // between any two neighbours of the order that matter
    for (size_t k = 0; k < top_k; ++k) {
      margin = std::min(margin, score[static_cast<size_t>(order[k])] -
                                    score[static_cast<size_t>(order[k + 1])]);
    }
    if (margin <= 1e-6) {
      ++close_calls;
      continue;
    }
    double sum = 0.0;
    for (size_t k = 0; k < top_k; ++k) {
      ASSERT_EQ(got.ids[t * top_k + k], order[k]) << t;
      sum += prob[static_cast<size_t>(order[k])];
    }
    for (size_t k = 0; k < top_k; ++k) {
      const double want = prob[static_cast<size_t>(order[k])] / sum * 1.5;
      // The contract of moe_gate.h.
      ASSERT_NEAR(got.weights[t * top_k + k], want,
                  4 * double{kEpsilon} * want);
    }
  }
  EXPECT_LT(close_calls, 10);
}

TEST(MoeGateTest, TiesGoToTheLowestExpert) {
  const std::vector<float> logits(8, 0.25f);
  MoeGateParams p;
  p.logits = logits.data();
  p.tokens = 1;
  p.experts = 8;
  p.top_k = 3;
  const Result r = Gate(p);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_NEAR(r.weights[0], 1.0 / 3.0, kEpsilon);
}

TEST(MoeGateTest, TheBiasChoosesButDoesNotWeigh) {
  const std::vector<float> logits = {3.0f, 0.0f, 0.0f, 0.0f};
  const std::vector<float> bias = {0.0f, 0.0f, 100.0f, 50.0f};
  MoeGateParams p;
  p.logits = logits.data();
  p.bias = bias.data();
  p.tokens = 1;
  p.experts = 4;
  p.top_k = 2;
  const Result r = Gate(p);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(r.weights[0], 0.5f);
  EXPECT_EQ(r.weights[1], 0.5f);
}

TEST(MoeGateTest, ExtremeLogitsGiveFiniteWeights) {
  const std::vector<float> logits = {-1e4f, -1e4f, 1e30f, kNan, 20.0f, 21.0f};
  MoeGateParams p;
  p.logits = logits.data();
  p.tokens = 1;
  p.experts = 6;
  p.top_k = 3;
  const Result r = Gate(p);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 5, 4}));
  for (const float w : r.weights) {
    EXPECT_TRUE(std::isfinite(w));
  }
  // All probabilities zero: the 1e-20 in the sum keeps the weights at zero.
  const std::vector<float> none(6, -1e4f);
  p.logits = none.data();
  EXPECT_EQ(Gate(p).weights, std::vector<float>(3, 0.0f));
}

TEST(MoeGateTest, HashRoutingTakesTheTableRowOfTheToken) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, 3.0f,
                                     0.0f, 1.0f, 2.0f, 3.0f};
  const std::vector<int64_t> table = {0, 1, 3, 2, 2, 0};
  // The table may lie at any address.
  std::vector<unsigned char> bytes(table.size() * 8 + 1);
  std::memcpy(bytes.data() + 1, table.data(), table.size() * 8);
  const std::vector<int32_t> tokens = {1, 2};
  MoeGateParams p;
  p.logits = logits.data();
  p.logits_row_stride = 4;
  p.tid2eid = reinterpret_cast<const int64_t*>(bytes.data() + 1);
  p.token_ids = tokens.data();
  p.vocab = 3;
  p.tokens = 2;
  p.experts = 4;
  p.top_k = 2;
  p.scaling_factor = 2.0f;
  const Result r = Gate(p);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{3, 2, 2, 0}));
  const double p2 = Probability(2.0);
  const double p3 = Probability(3.0);
  EXPECT_NEAR(r.weights[0], 2 * p3 / (p2 + p3), 8 * kEpsilon);
  EXPECT_NEAR(r.weights[1], 2 * p2 / (p2 + p3), 8 * kEpsilon);
}

TEST(MoeGateDeathTest, RefusesATokenOutsideTheTable) {
  const std::vector<float> logits(4, 0.0f);
  const std::vector<int64_t> table(6, 0);
  const int32_t token = 3;
  MoeGateParams p;
  p.logits = logits.data();
  p.tid2eid = table.data();
  p.token_ids = &token;
  p.vocab = 3;
  p.tokens = 1;
  p.experts = 4;
  p.top_k = 2;
  EXPECT_DEATH(Gate(p), "outside the vocabulary");
}

}  // namespace
}  // namespace baton::kernels
