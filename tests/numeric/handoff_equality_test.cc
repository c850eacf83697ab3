// Hand-off equals local, bit for bit (issue "Hand-off equals local"): the
// logits of the 8 steps after a prompt of N tokens are the same whether the
// sequence stays where it was computed or crosses to another store.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/base/status_macros.h"
#include "common/testing/status_matchers.h"
#include "tests/numeric/handoff_pair.h"
#include "tests/numeric/oracle_support.h"

namespace baton::numeric {
namespace {

constexpr int32_t kSteps = 8;

std::vector<int32_t> RandomTokens(int32_t count, int32_t vocab) {
  std::mt19937 random(17);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  }
  return ids;
}

struct Setup {
  std::unique_ptr<Rig> local;
  std::unique_ptr<Rig> from;
  std::unique_ptr<Rig> to;
  std::unique_ptr<HandoffPair> pair;
};

Setup MakeSetup(const RigOptions& options) {
  Setup s;
  RigOptions poisoned = options;
  // The receiving side starts from NaN: a row that is read without having been
  // sent shows.
  poisoned.poison = true;
  s.local = *Rig::Create(options);
  s.from = *Rig::Create(options);
  s.to = *Rig::Create(poisoned);
  s.pair = *HandoffPair::Create(s.from.get(), s.to.get());
  return s;
}

// Logits of the last prompt token and of the kSteps tokens after it.
absl::StatusOr<std::vector<float>> Local(Setup* s,
                                         absl::Span<const int32_t> prompt,
                                         absl::Span<const int32_t> after) {
  Rig::Sequence sequence =
      s->local->NewSequence(static_cast<int64_t>(prompt.size() + after.size()));
  ASSIGN_OR_RETURN(
      std::vector<float> all,
      s->local->Feed(&sequence, prompt, 256, model::LogitsWanted::kLast));
  // kLast of several chunks: the last chunk's row is what counts.
  all.erase(all.begin(), all.end() - s->local->vocab());
  for (const int32_t& token : after) {
    ASSIGN_OR_RETURN(const std::vector<float> row,
                     s->local->Feed(&sequence, absl::MakeConstSpan(&token, 1),
                                    1, model::LogitsWanted::kLast));
    all.insert(all.end(), row.begin(), row.end());
  }
  s->local->Release(sequence);
  return all;
}

absl::StatusOr<std::vector<float>> Moved(Setup* s,
                                         absl::Span<const int32_t> prompt,
                                         absl::Span<const int32_t> after,
                                         int64_t chunk) {
  ASSIGN_OR_RETURN(
      HandoffPair::Arrived arrived,
      s->pair->Move(prompt, chunk,
                    static_cast<int64_t>(prompt.size() + after.size())));
  std::vector<float> all = std::move(arrived.last_logits);
  for (const int32_t& token : after) {
    ASSIGN_OR_RETURN(
        const std::vector<float> row,
        s->to->Feed(&arrived.sequence, absl::MakeConstSpan(&token, 1), 1,
                    model::LogitsWanted::kLast));
    all.insert(all.end(), row.begin(), row.end());
  }
  s->to->Release(arrived.sequence);
  return all;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void Sweep(const RigOptions& options, const std::vector<int32_t>& lengths,
           const std::vector<int64_t>& chunks) {
  Setup s = MakeSetup(options);
  const std::vector<int32_t> ids =
      RandomTokens(lengths.back() + kSteps, s.local->vocab());
  const auto all = absl::MakeConstSpan(ids);
  int32_t compared = 0;
  for (const int32_t n : lengths) {
    const auto prompt = all.subspan(0, static_cast<size_t>(n));
    const auto after = all.subspan(static_cast<size_t>(n), kSteps);
    const auto local = Local(&s, prompt, after);
    ASSERT_TRUE(local.ok()) << n << " " << local.status().ToString();
    ASSERT_EQ(local->size(),
              static_cast<size_t>((kSteps + 1) * s.local->vocab()));
    for (const int64_t chunk : chunks) {
      // One token at a time over long prompts shows nothing new.
      if (n / chunk > 600) continue;
      const auto moved = Moved(&s, prompt, after, chunk);
      ASSERT_TRUE(moved.ok()) << n << " " << moved.status().ToString();
      ASSERT_TRUE(SameBits(*local, *moved)) << "N " << n << " chunk " << chunk;
      ++compared;
    }
  }
  std::printf("%d hand-offs, %d steps each: all bits equal\n", compared,
              kSteps);
}

// Every remainder of 4 and 128 near the borders of windows, blocks and C128
// rows; the whole sweep of the issue runs under the label slow.
TEST(HandoffEqualsLocal, AtTheBorders) {
  Sweep({}, {1,   2,   3,   4,   5,   7,   8,   9,   31,  63,  64,
             65,  126, 127, 128, 129, 130, 131, 191, 254, 255, 256,
             257, 258, 259, 260, 299, 300, 511, 512, 513},
        {256});
}

TEST(HandoffEqualsLocal, WhateverTheChunks) {
  Sweep({}, {5, 129, 258, 391}, {1, 3, 4, 127, 128, 129, 256, 391});
}

TEST(HandoffEqualsLocal, WithBf16Rows) {
  Sweep({.format = "bf16"}, {3, 128, 257, 391}, {256, 129});
}

TEST(HandoffEqualsLocal, ForTheOtherCheckpoint) {
  Sweep({.checkpoint = "random"}, {1, 4, 127, 128, 131, 257, 391}, {256, 3});
}

TEST(HandoffEqualsLocalSlow, EveryLengthOfTheIssue) {
  std::vector<int32_t> lengths;
  for (int32_t n = 1; n <= 300; ++n) lengths.push_back(n);
  for (const int32_t n : {511, 512, 513, 1023, 1024, 1025}) {
    lengths.push_back(n);
  }
  for (int32_t n = 2047; n <= 2051; ++n) lengths.push_back(n);
  Sweep({}, lengths, {256});
  Sweep({}, {300, 513, 1025}, {1, 3, 4, 127, 128, 129, 256, 1025});
}

}  // namespace
}  // namespace baton::numeric
