// What the engine samples and delivers, with the demo model.
#include "decode_worker/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/testing/status_matchers.h"
#include "tests/decode_worker/engine/decode_rig.h"

namespace baton::decode_worker {
namespace {

using request::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;
using Ask = DecodeRig::Ask;

request::SamplingParams Greedy(int32_t max_tokens) {
  request::SamplingParams params;
  params.temperature = 0.0F;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

request::SamplingParams Random(int32_t max_tokens, uint64_t seed,
                               int32_t n = 1) {
  request::SamplingParams params;
  params.seed = seed;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.n = n;
  return params;
}

TEST(EngineTest, GoesFromReservedToFinishedAndReturnsEverything) {
  DecodeRig rig;
  const auto call = rig.Complete({PromptOf(20, 1), Greedy(6)});
  EXPECT_THAT(call->got.order,
              ElementsAre("reserved", "committed", "finished"));
  ASSERT_TRUE(call->got.end.has_value());
  EXPECT_OK(*call->got.end);
  EXPECT_EQ(call->got.samples[0].ids.size(), 6u);
  EXPECT_EQ(call->got.samples[0].finished->reason, FinishReason::kLength);
  EXPECT_EQ(call->got.ticket->attempt, 1);
  EXPECT_EQ(call->got.committed->receive_us, 1000);
  rig.ExpectEmpty();
  EXPECT_EQ(BugCount(), 0);
}

TEST(EngineTest, ProcessesOutputMinusOneTokensAndNoPromptToken) {
  for (const int32_t max_tokens : {1, 2, 3, 20}) {
    DecodeRig rig;
    const auto call = rig.Complete({PromptOf(40, 1), Greedy(max_tokens)});
    EXPECT_EQ(call->got.samples[0].ids.size(), size_t(max_tokens));
    EXPECT_EQ(rig.engine().stats().processed_tokens, max_tokens - 1);
    EXPECT_EQ(rig.engine().stats().sampled_tokens, max_tokens);
    EXPECT_EQ(rig.engine().stats().steps, max_tokens - 1);
    EXPECT_THAT(rig.metric_set.Expose(),
                HasSubstr("baton_step_tokens_total{phase=\"decode\"} " +
                          std::to_string(max_tokens - 1)));
    rig.ExpectEmpty();
  }
}

TEST(EngineTest, EqualsALongerPromptTokenForToken) {
  // Decoding is right if feeding prompt + output as a prompt predicts the same.
  DecodeRig rig;
  const auto call = rig.Complete({PromptOf(30, 2), Greedy(12)});
  const std::vector<int32_t>& ids = call->got.samples[0].ids;
  for (const size_t cut : {1u, 5u, 11u}) {
    std::vector<int32_t> longer = call->prompt;
    longer.insert(longer.end(), ids.begin(),
                  ids.begin() + static_cast<std::ptrdiff_t>(cut));
    const auto next = rig.Complete({longer, Greedy(1)});
    EXPECT_EQ(next->got.samples[0].ids[0], ids[cut]);
  }
}

TEST(EngineTest, SeedsRepeatAndSamplesOfARequestDiffer) {
  DecodeRig rig;
  const auto prompt = PromptOf(24, 3);
  const auto first = rig.Complete({prompt, Random(16, 42, /*n=*/4)});
  const auto again = rig.Complete({prompt, Random(16, 42, /*n=*/4)});
  std::set<std::vector<int32_t>> distinct;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(first->got.samples[i].ids, again->got.samples[i].ids);
    EXPECT_EQ(first->got.samples[i].ids.size(), 16u);
    distinct.insert(first->got.samples[i].ids);
  }
  EXPECT_EQ(distinct.size(), 4u);
  const auto other = rig.Complete({prompt, Random(16, 43)});
  EXPECT_EQ(distinct.count(other->got.samples[0].ids), 0u);
  rig.ExpectEmpty();
}

TEST(EngineTest, EveryForkedSampleEqualsTheSampleAlone) {
  // Around a block border: nothing, all or part of the prompt is shared. Greedy
  // samples must all equal the single one although memory is shared.
  for (const int64_t tokens : {255, 256, 257}) {
    for (const int32_t max_tokens : {1, 2, 5}) {
      DecodeRig rig({.blocks = 12});
      const auto prompt = PromptOf(tokens, 4);
      const auto alone = rig.Complete({prompt, Greedy(max_tokens)});
      request::SamplingParams three = Greedy(max_tokens);
      three.n = 3;
      const auto forked = rig.Complete({prompt, three});
      for (const CollectedSample& sample : forked->got.samples) {
        EXPECT_EQ(sample.ids, alone->got.samples[0].ids)
            << tokens << "+" << max_tokens;
      }
      rig.ExpectEmpty();
    }
  }
}

TEST(EngineTest, ForkedSamplesDoNotDisturbEachOther) {
  DecodeRig rig;
  const auto prompt = PromptOf(257, 5);
  const auto together = rig.Complete({prompt, Random(24, 9, /*n=*/4)});
  // Sample 0 of n = 1 has the same key as sample 0 of n = 4.
  const auto alone = rig.Complete({prompt, Random(24, 9)});
  EXPECT_EQ(together->got.samples[0].ids, alone->got.samples[0].ids);
}

TEST(EngineTest, BatchCompositionChangesNothing) {
  // 64 prompts alone, together, shuffled, and with cancels in between.
  constexpr int32_t kPrompts = 64;
  DecodeRig rig({.blocks = 64});
  const auto ask_of = [](int32_t i) {
    const auto n = static_cast<uint64_t>(i);
    return Ask{
        .prompt = PromptOf(1 + i % 29, i),
        .sampling = i % 2 == 0 ? Greedy(4 + i % 5) : Random(4 + i % 5, n)};
  };
  std::vector<std::vector<int32_t>> alone;
  for (int32_t i = 0; i < kPrompts; ++i) {
    alone.push_back(rig.Complete(ask_of(i))->got.samples[0].ids);
  }
  for (const int32_t stride : {1, 37}) {
    for (const bool cancels : {false, true}) {
      std::vector<std::unique_ptr<DecodeRig::Call>> calls;
      for (int32_t k = 0; k < kPrompts; ++k) {
        calls.push_back(rig.Start(ask_of(k * stride % kPrompts)));
        rig.Prefill(*calls.back());
        if (k % 7 == 0) rig.engine().Iterate();
      }
      if (cancels) {
        rig.engine().Iterate();
        for (int32_t k = 0; k < kPrompts; k += 3) {
          rig.engine().Cancel(calls[size_t(k)]->output.get(),
                              absl::CancelledError("test"));
        }
      }
      rig.RunSteps();
      for (int32_t k = 0; k < kPrompts; ++k) {
        DecodeRig::Call* const call = calls[size_t(k)].get();
        rig.Read(call);
        if (!call->got.end->ok()) continue;
        EXPECT_EQ(call->got.samples[0].ids,
                  alone[size_t(k * stride % kPrompts)])
            << "stride " << stride << " call " << k;
      }
      rig.ExpectEmpty();
    }
  }
}

TEST(EngineTest, SampleEndsOneByOneAndMemoryReturnsWithEach) {
  DecodeRig rig;
  request::SamplingParams params = Random(40, 11, /*n=*/3);
  const auto prompt = PromptOf(16, 6);
  // Stop sample 1 early by a token that it alone draws at its second step.
  const auto probe = rig.Complete({prompt, params});
  const int32_t stop = probe->got.samples[1].ids[1];
  params.stop_token_ids = {stop};
  const auto call = rig.Start({prompt, params});
  rig.Prefill(*call);
  rig.engine().Iterate();  // first tokens and one step
  rig.engine().Iterate();
  rig.Read(call.get());
  ASSERT_TRUE(call->got.samples[1].finished.has_value());
  EXPECT_EQ(call->got.samples[1].finished->reason, FinishReason::kStop);
  EXPECT_FALSE(call->got.end.has_value());
  EXPECT_GE(rig.pool().counts().slots_free, 62);
  rig.RunSteps();
  rig.Read(call.get());
  EXPECT_OK(*call->got.end);
  rig.ExpectEmpty();
}

TEST(EngineTest, GivesLogprobsOfEveryToken) {
  DecodeRig rig;
  Ask ask{PromptOf(12, 7), Greedy(3)};
  ask.logprobs = 3;
  const auto call = rig.Complete(ask);
  const CollectedSample& sample = call->got.samples[0];
  ASSERT_EQ(sample.logprobs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sample.logprobs[i].token.token_id, sample.ids[i]);
    ASSERT_EQ(sample.logprobs[i].top.size(), 3u);
    // Greedy draws the most likely one.
    EXPECT_EQ(sample.logprobs[i].top[0].token_id, sample.ids[i]);
    EXPECT_EQ(sample.logprobs[i].top[0].logprob,
              sample.logprobs[i].token.logprob);
    EXPECT_LE(sample.logprobs[i].top[1].logprob,
              sample.logprobs[i].top[0].logprob);
  }
}

TEST(EngineTest, StopStringEndsAnAnswerAtItsFirstSight) {
  DecodeRig rig;
  const auto prompt = PromptOf(25, 8);
  const auto full = rig.Complete({prompt, Greedy(24)});
  const std::string& text = full->got.samples[0].text;
  ASSERT_GE(text.size(), 12u) << text;
  const std::string stop = text.substr(text.size() / 2, 4);
  request::SamplingParams params = Greedy(24);
  params.stop = {stop};
  const auto cut = rig.Complete({prompt, params});
  EXPECT_EQ(cut->got.samples[0].text, text.substr(0, text.find(stop)));
  EXPECT_EQ(cut->got.samples[0].finished->reason, FinishReason::kStop);
  EXPECT_LT(cut->got.samples[0].ids.size(), 24u);
  rig.ExpectEmpty();
}

TEST(EngineTest, RefusesWhatDoesNotFitAndHoldsNothing) {
  DecodeRig rig({.blocks = 2, .slots = 2, .seats = 2});
  const auto never = rig.Start({PromptOf(500, 1), Greedy(14)});
  rig.Read(never.get());
  EXPECT_THAT(*never->got.end, StatusIs(absl::StatusCode::kInvalidArgument));
  const auto fits = rig.Start({PromptOf(500, 1), Greedy(13)});  // 512 positions
  const auto later = rig.Start({PromptOf(2, 1), Greedy(1)});
  rig.Read(fits.get());
  rig.Read(later.get());
  EXPECT_TRUE(fits->got.ticket.has_value());
  EXPECT_THAT(*later->got.end, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GT(request::InfoOf(*later->got.end).retry_delay_ms, 0);
  EXPECT_EQ(rig.pool().counts().reserved_idle, 2);
  rig.Prefill(*fits);
  rig.RunSteps();
  rig.Read(fits.get());
  EXPECT_OK(*fits->got.end);
  rig.ExpectEmpty();
}

}  // namespace
}  // namespace baton::decode_worker
