#include "kernels/include/sampling.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

SamplingScratch& Scratch() {
  static SamplingScratch scratch;
  return scratch;
}

SamplingParams Params(const std::vector<float>& logits) {
  SamplingParams p;
  p.logits = logits.data();
  p.vocab = static_cast<int32_t>(logits.size());
  p.scratch = &Scratch();
  return p;
}

SamplingParams Greedy(const std::vector<float>& logits) {
  SamplingParams p = Params(logits);
  p.temperature = 0.0;
  return p;
}

TEST(PhiloxTest, MatchesThePublishedVectors) {
  // Known answers of Philox4x32-10 from the Random123 distribution.
  const PhiloxBlock zero = Philox4x32({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const uint32_t f = 0xffffffffu;
  const PhiloxBlock ones = Philox4x32({{f, f, f, f}}, f, f);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
  const PhiloxBlock pi =
      Philox4x32({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
                 0xa4093822u, 0x299f31d0u);
  EXPECT_EQ(pi.word[0], 0xd16cfe09u);
  EXPECT_EQ(pi.word[1], 0x94fdccebu);
  EXPECT_EQ(pi.word[2], 0x5001e420u);
  EXPECT_EQ(pi.word[3], 0x24126ea1u);
}

TEST(PhiloxTest, EveryPartOfTheKeyMatters) {
  const RandomKey key{5, 1, 2, RandomPurpose::kSample};
  const double u = PhiloxUniform(key);
  EXPECT_EQ(PhiloxUniform(key), u);
  EXPECT_NE(PhiloxUniform({6, 1, 2, RandomPurpose::kSample}), u);
  EXPECT_NE(PhiloxUniform({5 + (1ull << 32), 1, 2, RandomPurpose::kSample}), u);
  EXPECT_NE(PhiloxUniform({5, 2, 1, RandomPurpose::kSample}), u);
  EXPECT_NE(PhiloxUniform({5, 1, 3, RandomPurpose::kSample}), u);
  EXPECT_NE(PhiloxUniform({5, 1, 2, RandomPurpose::kDraft}), u);
  EXPECT_GT(u, 0.0);
  EXPECT_LT(u, 1.0);
}

// Draws `draws` times with output indices 0, 1, ... and compares the counts
// with `want` (probabilities; zero means must never occur). The limit is the
// 99.9 % point of chi-square: a fixed seed, so the test is deterministic.
void ExpectFrequencies(SamplingParams p, const std::vector<double>& want) {
  constexpr uint32_t kDraws = 20000;
  std::vector<int> counts(want.size(), 0);
  p.want_logprob = false;
  p.key.seed = 42;
  for (uint32_t i = 0; i < kDraws; ++i) {
    p.key.output_index = i;
    const int32_t id = Sample(p).id;
    ASSERT_GE(id, 0);
    ++counts[static_cast<size_t>(id)];
  }
  double chi_square = 0.0;
  int degrees = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double expected = want[i] * kDraws;
    if (want[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++degrees;
  }
  const double limits[] = {0.0,   10.83, 13.82, 16.27,
                           18.47, 20.52, 22.46, 24.32};
  EXPECT_LE(chi_square, limits[degrees]);
}

const std::vector<double> kProbabilities = {0.05, 0.30, 0.10, 0.25,
                                            0.02, 0.15, 0.01, 0.12};

std::vector<float> Logits() {
  std::vector<float> logits;
  for (const double p : kProbabilities) {
    logits.push_back(static_cast<float>(std::log(p) + 3.0));
  }
  return logits;
}

std::vector<double> Normalised(std::vector<double> v) {
  double sum = 0.0;
  for (const double x : v) {
    sum += x;
  }
  for (double& x : v) {
    x /= sum;
  }
  return v;
}

TEST(SamplingTest, FrequenciesFollowTheSoftmax) {
  ExpectFrequencies(Params(Logits()), kProbabilities);
}

TEST(SamplingTest, FrequenciesFollowTheTemperature) {
  for (const double temperature : {0.5, 0.9, 2.0}) {
    const auto logits = Logits();
    SamplingParams p = Params(logits);
    p.temperature = temperature;
    std::vector<double> want;
    for (const double q : kProbabilities) {
      want.push_back(std::pow(q, 1.0 / temperature));
    }
    ExpectFrequencies(p, Normalised(want));
  }
}

TEST(SamplingTest, FrequenciesFollowTopK) {
  const auto logits = Logits();
  SamplingParams p = Params(logits);
  p.top_k = 3;
  ExpectFrequencies(p, Normalised({0, 0.30, 0, 0.25, 0, 0.15, 0, 0}));
  p.top_k = 8;
  ExpectFrequencies(p, kProbabilities);
  p.top_k = 100;
  ExpectFrequencies(p, kProbabilities);
}

TEST(SamplingTest, FrequenciesFollowTopP) {
  const auto logits = Logits();
  SamplingParams p = Params(logits);
  p.top_p = 0.6;  // 0.30 + 0.25 = 0.55 is not enough
  ExpectFrequencies(p, Normalised({0, 0.30, 0, 0.25, 0, 0.15, 0, 0}));
  p.top_p = 0.5;
  ExpectFrequencies(p, Normalised({0, 0.30, 0, 0.25, 0, 0, 0, 0}));
  p.top_p = 1e-9;
  ExpectFrequencies(p, {0, 1, 0, 0, 0, 0, 0, 0});
}

TEST(SamplingTest, FrequenciesFollowMinP) {
  const auto logits = Logits();
  SamplingParams p = Params(logits);
  p.min_p = 0.45;  // of 0.30: at least 0.135
  ExpectFrequencies(p, Normalised({0, 0.30, 0, 0.25, 0, 0.15, 0, 0}));
  p.min_p = 1.0;
  ExpectFrequencies(p, {0, 1, 0, 0, 0, 0, 0, 0});
}

TEST(SamplingTest, FiltersActInTheDocumentedOrder) {
  const auto logits = Logits();
  SamplingParams p = Params(logits);
  p.temperature = 0.5;
  p.top_k = 4;
  p.top_p = 0.9;
  // Squares: .09 .0625 .0225 .0144 of the best four, sum .1894; 0.9 of it is
  // .17046, and .09 + .0625 = .1525 is not enough, with .0225 it is.
  ExpectFrequencies(p, Normalised({0, 0.09, 0, 0.0625, 0, 0.0225, 0, 0}));
}

TEST(SamplingTest, CutsTiesAtTheLowestIds) {
  const std::vector<float> logits(6, 1.0f);
  SamplingParams p = Params(logits);
  p.top_k = 2;
  ExpectFrequencies(p, {0.5, 0.5, 0, 0, 0, 0});
  p.top_k = 0;
  p.top_p = 0.5;
  ExpectFrequencies(p, Normalised({1, 1, 1, 0, 0, 0}));
}

TEST(SamplingTest, GreedyTakesTheLargestAndTheLowestId) {
  EXPECT_EQ(Sample(Greedy({1, 5, 5, 2})).id, 1);
  EXPECT_EQ(Sample(Greedy({kNan, -3, kNan})).id, 1);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Sample(Greedy({0, inf, inf})).id, 1);
  EXPECT_EQ(Sample(Greedy({7})).id, 0);
}

TEST(SamplingTest, ExtremeTemperaturesDoNotOverflow) {
  const std::vector<float> logits = {-80.0f, 80.0f, 79.99f, 3e38f, -3e38f};
  SamplingParams p = Params(logits);
  for (const double t : {1e-30, 1e-300, 5e-324}) {
    p.temperature = t;
    EXPECT_EQ(Sample(p).id, 3) << t;
  }
  p.temperature = 1e300;  // all equal
  ExpectFrequencies(p, {0.2, 0.2, 0.2, 0.2, 0.2});
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> infinite = {0.0f, inf, inf, -inf};
  ExpectFrequencies(Params(infinite), {0, 0.5, 0.5, 0});
}

TEST(SamplingTest, NoLogitLeftGivesNoToken) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Sample(Greedy({-inf, kNan})).id, -1);
  EXPECT_EQ(Sample(Params({-inf, kNan})).id, -1);
}

TEST(SamplingTest, BannedIdsNeverAppear) {
  const std::vector<float> logits = {5, 4, 3};
  const std::vector<int32_t> banned = {0, 2};
  SamplingParams p = Params(logits);
  p.banned_ids = banned.data();
  p.num_banned = 2;
  ExpectFrequencies(p, {0, 1, 0});
  p.temperature = 0.0;
  EXPECT_EQ(Sample(p).id, 1);
}

TEST(SamplingTest, PenaltiesFollowTheirFormulas) {
  // Each case: one penalized token against a rival just above or below the
  // value the formula gives.
  struct Case {
    float logit;
    int32_t count;
    double repetition, presence, frequency;
    float result;
  };
  for (const Case& c :
       {Case{4.0f, 0, 2.0, 0, 0, 2.0f}, Case{-4.0f, 0, 2.0, 0, 0, -8.0f},
        Case{4.0f, 3, 1.0, 0.5, 0, 3.5f}, Case{4.0f, 0, 1.0, 0.5, 0.25, 4.0f},
        Case{4.0f, 3, 1.0, 0, 0.25, 3.25f}, Case{4.0f, 2, 2.0, 0.5, 0.25, 1.0f},
        Case{4.0f, 2, 1.0, -0.5, -0.25, 5.0f}}) {
    for (const float rival : {c.result - 0.01f, c.result + 0.01f}) {
      const std::vector<float> logits = {c.logit, rival};
      const PenalizedToken token{0, c.count};
      SamplingParams p = Greedy(logits);
      p.penalized = &token;
      p.num_penalized = 1;
      p.repetition_penalty = c.repetition;
      p.presence_penalty = c.presence;
      p.frequency_penalty = c.frequency;
      EXPECT_EQ(Sample(p).id, rival < c.result ? 0 : 1)
          << c.logit << " " << c.count << " " << rival;
    }
  }
}

TEST(SamplingTest, LogprobsAreOfTheRawSoftmax) {
  const auto logits = Logits();
  const std::vector<int32_t> banned = {1};
  std::vector<TokenLogprob> top(3);
  SamplingParams p = Greedy(logits);
  p.banned_ids = banned.data();
  p.num_banned = 1;
  p.num_top_logprobs = 3;
  p.top_logprobs = top.data();
  const SamplingResult r = Sample(p);
  EXPECT_EQ(r.id, 3);
  EXPECT_NEAR(r.logprob, std::log(0.25), 1e-6);  // logits are fp32 near 3
  const std::vector<int32_t> ids = {1, 3, 5};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(top[i].id, ids[i]);
    EXPECT_NEAR(top[i].logprob,
                std::log(kProbabilities[static_cast<size_t>(ids[i])]), 1e-6);
  }
  p.temperature = 7.0;
  p.key.seed = 3;
  const SamplingResult hot = Sample(p);
  EXPECT_NEAR(hot.logprob,
              std::log(kProbabilities[static_cast<size_t>(hot.id)]), 1e-6);
}

TEST(SamplingDeathTest, RefusesBadSettings) {
  const std::vector<float> logits = {1, 2};
  SamplingParams p = Params(logits);
  p.temperature = kNan;
  EXPECT_DEATH(Sample(p), "temperature");
  p = Params(logits);
  p.top_p = 0.0;
  EXPECT_DEATH(Sample(p), "top_p");
}

}  // namespace
}  // namespace baton::kernels
