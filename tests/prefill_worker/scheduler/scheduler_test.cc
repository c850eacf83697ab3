#include "prefill_worker/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"

namespace baton::prefill_worker {
namespace {

using baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PromptId P(int64_t i) { return PromptId{i}; }

// Runs one step; the chunks as {prompt, tokens}.
std::vector<std::pair<int64_t, int32_t>> Step(Scheduler* scheduler) {
  std::vector<std::pair<int64_t, int32_t>> out;
  for (const Chunk& chunk : scheduler->PlanStep()) {
    out.emplace_back(static_cast<int64_t>(chunk.prompt), chunk.tokens);
    scheduler->Commit(chunk);
  }
  return out;
}

using Steps = std::vector<std::pair<int64_t, int32_t>>;

TEST(SchedulerTest, PlansNothingWithoutPrompts) {
  Scheduler scheduler({});
  EXPECT_THAT(scheduler.PlanStep(), IsEmpty());
  EXPECT_TRUE(scheduler.empty());
  EXPECT_EQ(scheduler.backlog_tokens(), 0);
}

TEST(SchedulerTest, CutsOnePromptIntoChunksThatEndAtMultiplesOf256) {
  struct Case {
    int64_t tokens;
    std::vector<int32_t> chunks;
  };
  const std::vector<Case> cases = {
      {1, {1}},          {255, {255}},       {256, {256}},
      {257, {257}},      {511, {511}},       {512, {512}},
      {513, {512, 1}},   {767, {512, 255}},  {768, {512, 256}},
      {769, {512, 257}}, {1024, {512, 512}}, {1025, {512, 512, 1}}};
  for (const Case& c : cases) {
    Scheduler scheduler({});
    scheduler.Add(P(1), c.tokens);
    std::vector<int32_t> chunks;
    int64_t at = 0;
    while (!scheduler.empty()) {
      EXPECT_EQ(scheduler.backlog_tokens(), c.tokens - at);
      const std::vector<Chunk> step = scheduler.PlanStep();
      ASSERT_EQ(step.size(), 1) << c.tokens;
      EXPECT_EQ(step[0].first, at);
      at += step[0].tokens;
      EXPECT_EQ(step[0].final, at == c.tokens);
      chunks.push_back(step[0].tokens);
      scheduler.Commit(step[0]);
    }
    EXPECT_EQ(chunks, c.chunks) << c.tokens;
    EXPECT_EQ(scheduler.backlog_tokens(), 0);
  }
}

TEST(SchedulerTest, CutsAnywhereWhenTheAlignmentIsOne) {
  for (const int32_t size : {1, 3, 4, 127, 128, 129, 256, 300}) {
    Scheduler scheduler({.chunk_tokens = size, .chunk_alignment = 1});
    scheduler.Add(P(1), 300);
    int64_t left = 300;
    while (left > 0) {
      const auto expected = static_cast<int32_t>(std::min<int64_t>(size, left));
      ASSERT_EQ(Step(&scheduler), (Steps{{1, expected}}));
      left -= expected;
    }
    EXPECT_TRUE(scheduler.empty());
  }
}

TEST(SchedulerTest, TheOldestTakesHalfAndTheRestGoesRound) {
  Scheduler scheduler({.max_step_tokens = 1024, .chunk_tokens = 1024});
  scheduler.Add(P(1), 4000);
  scheduler.Add(P(2), 4000);
  scheduler.Add(P(3), 4000);
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 512}, {2, 256}, {3, 256}}));
}

TEST(SchedulerTest, AShortPromptBehindALongOneRunsInTheNextStep) {
  Scheduler scheduler({});
  scheduler.Add(P(1), 4000);
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 512}}));
  scheduler.Add(P(2), 20);
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 256}, {2, 20}}));
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 512}}));
}

TEST(SchedulerTest, UsesTheBudgetForFurtherRounds) {
  Scheduler scheduler({});
  scheduler.Add(P(1), 100);
  scheduler.Add(P(2), 400);
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 100}, {2, 400}}));
  EXPECT_TRUE(scheduler.empty());
}

TEST(SchedulerTest, ServesWhoWaitedLongestWhenTheBudgetIsOneUnit) {
  Scheduler scheduler({.max_step_tokens = 256, .chunk_tokens = 256});
  scheduler.Add(P(1), 600);
  scheduler.Add(P(2), 600);
  scheduler.Add(P(3), 600);
  std::vector<int64_t> order;
  while (!scheduler.empty()) {
    for (const auto& [prompt, tokens] : Step(&scheduler)) {
      order.push_back(prompt);
    }
  }
  EXPECT_THAT(std::vector<int64_t>(order.begin(), order.begin() + 6),
              ElementsAre(1, 2, 3, 1, 2, 3));
}

TEST(SchedulerTest, ServesNoMorePromptsThanAStepHolds) {
  Scheduler scheduler({.max_step_prompts = 2});
  for (int64_t i = 1; i <= 5; ++i) scheduler.Add(P(i), 10);
  EXPECT_EQ(Step(&scheduler), (Steps{{1, 10}, {2, 10}}));
  EXPECT_EQ(Step(&scheduler), (Steps{{3, 10}, {4, 10}}));
  EXPECT_EQ(Step(&scheduler), (Steps{{5, 10}}));
}

TEST(SchedulerTest, ForgetsARemovedPromptBeforeAndBetweenSteps) {
  Scheduler scheduler({});
  scheduler.Add(P(1), 1000);
  scheduler.Add(P(2), 1000);
  scheduler.Remove(P(1));
  EXPECT_EQ(scheduler.backlog_tokens(), 1000);
  EXPECT_EQ(Step(&scheduler), (Steps{{2, 512}}));
  scheduler.Remove(P(2));
  EXPECT_EQ(scheduler.backlog_tokens(), 0);
  EXPECT_TRUE(scheduler.empty());
  EXPECT_THAT(scheduler.PlanStep(), IsEmpty());
  scheduler.Remove(P(2));  // a no-op
}

TEST(SchedulerTest, IgnoresTheChunkOfAPromptRemovedDuringTheStep) {
  Scheduler scheduler({});
  scheduler.Add(P(1), 1000);
  const std::vector<Chunk> chunks = scheduler.PlanStep();
  scheduler.Remove(P(1));
  scheduler.Commit(chunks[0]);
  EXPECT_EQ(scheduler.backlog_tokens(), 0);
}

TEST(SchedulerTest, RefusesOptionsThatDoNotFit) {
  struct Case {
    SchedulerOptions options;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{.max_step_tokens = 255}, "token budget of a step is 255"},
      {{.chunk_tokens = 255}, "chunk tokens are 255"},
      {{.chunk_tokens = 300}, "chunk tokens are 300"},
      {{.chunk_tokens = 0, .chunk_alignment = 1}, "chunk tokens are 0"},
      {{.chunk_alignment = 0}, "chunk alignment is 0"},
      {{.max_step_prompts = 0}, "prompts per step are 0"}};
  for (const Case& c : cases) {
    EXPECT_THAT(
        ValidateSchedulerOptions(c.options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  EXPECT_OK(ValidateSchedulerOptions({}));
  EXPECT_OK(
      ValidateSchedulerOptions({.max_step_tokens = 256, .chunk_tokens = 256}));
}

// Random prompts come and go: every token is scheduled once and in order, the
// budget holds, non-final ends are aligned, the backlog adds up, and nobody
// waits for more steps than there are prompts.
TEST(SchedulerTest, KeepsItsPromisesOverRandomLoad) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    SchedulerOptions options;
    options.chunk_alignment = seed % 2 == 0 ? 256 : pick(1, 64);
    options.chunk_tokens = options.chunk_alignment * pick(1, 4);
    options.max_step_tokens = options.chunk_alignment * pick(1, 4) + pick(0, 9);
    options.max_step_prompts = 64;
    Scheduler scheduler(options);
    struct State {
      int64_t tokens = 0;
      int64_t processed = 0;
      int64_t waited = 0;
    };
    std::map<PromptId, State> prompts;
    int64_t next = 1;
    for (int step = 0; step < 300; ++step) {
      for (int i = pick(0, 2); i > 0 && prompts.size() < 20; --i) {
        const int64_t tokens = pick(0, 1) == 0 ? pick(1, 30) : pick(1, 3000);
        scheduler.Add(P(next), tokens);
        prompts[P(next++)] = {.tokens = tokens};
      }
      if (!prompts.empty() && pick(0, 9) == 0) {
        scheduler.Remove(prompts.begin()->first);
        prompts.erase(prompts.begin());
      }
      const std::vector<Chunk> chunks = scheduler.PlanStep();
      int64_t total = 0;
      for (auto& [id, state] : prompts) ++state.waited;
      for (const Chunk& chunk : chunks) {
        State& state = prompts.at(chunk.prompt);
        EXPECT_EQ(chunk.first, state.processed);
        EXPECT_GT(chunk.tokens, 0);
        EXPECT_LE(chunk.tokens, options.chunk_tokens);
        state.processed += chunk.tokens;
        EXPECT_EQ(chunk.final, state.processed == state.tokens);
        if (!chunk.final) {
          EXPECT_EQ(state.processed % options.chunk_alignment, 0);
        }
        state.waited = 0;
        total += chunk.tokens;
        scheduler.Commit(chunk);
      }
      EXPECT_LE(total, options.max_step_tokens);
      EXPECT_EQ(chunks.empty(), prompts.empty());
      int64_t backlog = 0;
      for (auto it = prompts.begin(); it != prompts.end();) {
        EXPECT_LE(it->second.waited, 20);
        backlog += it->second.tokens - it->second.processed;
        it = it->second.processed == it->second.tokens ? prompts.erase(it)
                                                       : std::next(it);
      }
      EXPECT_EQ(scheduler.backlog_tokens(), backlog);
    }
  }
}

}  // namespace
}  // namespace baton::prefill_worker
