// The rules that end a sample and what leaves it, with logits made by hand.
#include "decode_worker/engine/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/common/tokenizer/test_tokenizers.h"
#include "tests/decode_worker/collected.h"

namespace baton::decode_worker {
namespace {

using request::FinishReason;
using testing::DemoTokenizer;

constexpr int32_t kEos = 1;

int32_t IdOf(absl::string_view bytes) {
  const std::optional<int32_t> id = DemoTokenizer().IdOf(bytes);
  CHECK(id.has_value()) << std::string(bytes);
  return *id;
}

// Drives one sample with logits that make the listed ids win.
class SampleRun {
 public:
  explicit SampleRun(request::SamplingParams params,
                     std::optional<int32_t> logprobs = std::nullopt,
                     std::vector<int32_t> prompt = {9, 10})
      : params_(std::move(params)),
        prompt_(std::move(prompt)),
        output_({.samples = 1,
                 .logprobs = logprobs,
                 .vocabulary = &DemoVocabulary(),
                 .on_ready = nullptr,
                 .on_cut = nullptr}),
        got(1) {
    output_.Push(CommittedEvent{.attempt = 1});
    end_ids_ = params_.stop_token_ids;
    if (!params_.ignore_eos) end_ids_.push_back(kEos);
    auto stops = tokenizer::StopSet::Create(params_.stop);
    CHECK_OK(stops);
    sample_.emplace(
        Sample::Config{.sampler = {.params = &params_,
                                   .prompt_ids = prompt_,
                                   .end_ids = &end_ids_,
                                   .top_logprobs = logprobs.value_or(0),
                                   .want_logprobs = logprobs.has_value()},
                       .memory = {.blocks = {}},
                       .prompt_tokens = static_cast<int64_t>(prompt_.size()),
                       .vocabulary = &DemoVocabulary(),
                       .stop_set = *stops});
  }

  // Feeds until the sample ends; returns how many were fed.
  int Feed(const std::vector<int32_t>& ids) {
    int fed = 0;
    for (const int32_t id : ids) {
      if (sample_->ended()) break;
      std::vector<float> logits(2048, 0.0F);
      logits[static_cast<size_t>(id)] = 20.0F;
      logits[7] = 10.0F;  // the runner-up
      sample_->Advance(logits, &scratch_, &output_);
      got.Drain(&output_);
      ++fed;
    }
    return fed;
  }
  int FeedBytes(absl::string_view bytes) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < bytes.size(); ++i) {
      ids.push_back(IdOf(bytes.substr(i, 1)));
    }
    return Feed(ids);
  }
  const CollectedSample& sample() const { return got.samples[0]; }
  FinishReason reason() const {
    CHECK(sample().finished.has_value());
    return sample().finished->reason;
  }
  bool ended() const { return sample_->ended(); }

 private:
  request::SamplingParams params_;
  std::vector<int32_t> prompt_;
  RequestOutput output_;
  std::vector<int32_t> end_ids_;
  std::optional<Sample> sample_;
  kernels::SamplingScratch scratch_;

 public:
  Collected got;
};

request::SamplingParams Greedy(int32_t max_tokens,
                               std::vector<std::string> stop = {}) {
  request::SamplingParams params;
  params.temperature = 0.0F;
  params.max_tokens = max_tokens;
  params.stop = std::move(stop);
  return params;
}

TEST(SampleTest, EndOfSequenceFirstIsOneSilentToken) {
  SampleRun run(Greedy(32));
  EXPECT_EQ(run.Feed({kEos, IdOf("a")}), 1);
  EXPECT_EQ(run.sample().ids, std::vector<int32_t>{kEos});
  EXPECT_EQ(run.sample().text, "");
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, MaxTokensCountsTheFirstToken) {
  for (const int32_t limit : {1, 2, 3}) {
    request::SamplingParams params = Greedy(limit);
    params.ignore_eos = true;
    SampleRun run(params);
    EXPECT_EQ(run.Feed({kEos, kEos, kEos, kEos}), limit);
    EXPECT_EQ(run.sample().ids, std::vector<int32_t>(size_t(limit), kEos));
    EXPECT_EQ(run.reason(), FinishReason::kLength);
    EXPECT_EQ(run.sample().finished->output_tokens, limit);
  }
}

TEST(SampleTest, AnEndIdAtTheLimitIsAStop) {
  SampleRun run(Greedy(2));
  run.Feed({IdOf("a"), kEos});
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, MinTokensMasksEveryEndId) {
  request::SamplingParams params = Greedy(8);
  params.min_tokens = 3;
  params.stop_token_ids = {IdOf("z")};
  SampleRun run(params);
  run.Feed({kEos, IdOf("z"), kEos, kEos});
  // Masked three times: the runner-up wins; then the end is drawn.
  EXPECT_EQ(run.sample().ids, (std::vector<int32_t>{7, 7, 7, kEos}));
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, AStopTokenIdStopsEvenWithIgnoreEos) {
  request::SamplingParams params = Greedy(8);
  params.ignore_eos = true;
  params.stop_token_ids = {IdOf("What")};
  SampleRun run(params);
  run.Feed({IdOf("a"), kEos, IdOf("What"), IdOf("b")});
  EXPECT_EQ(run.sample().text, "a");
  EXPECT_EQ(run.sample().ids.size(), 3u);
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, StopStringAcrossTokensLetsNoPrefixOut) {
  SampleRun run(Greedy(64, {"</end>"}));
  run.FeedBytes("ok</en");
  EXPECT_EQ(run.sample().text, "ok");
  EXPECT_EQ(run.sample().ids.size(), 2u);
  run.FeedBytes("d>zz");
  EXPECT_EQ(run.sample().text, "ok");
  EXPECT_EQ(run.sample().ids.size(), 2u);
  EXPECT_EQ(run.reason(), FinishReason::kStop);
  EXPECT_EQ(run.sample().finished->output_tokens, 2);
}

TEST(SampleTest, TextHeldForAMatchThatFailsIsReleased) {
  SampleRun run(Greedy(64, {"</end>"}));
  run.FeedBytes("a</en");
  EXPECT_EQ(run.sample().text, "a");
  run.FeedBytes("x");
  EXPECT_EQ(run.sample().text, "a</enx");
  EXPECT_EQ(run.sample().ids.size(), 6u);
}

TEST(SampleTest, TextHeldAtTheEndIsReleased) {
  SampleRun by_length(Greedy(4, {"ZZZ"}));
  by_length.FeedBytes("abZZ");
  EXPECT_EQ(by_length.sample().text, "abZZ");
  EXPECT_EQ(by_length.reason(), FinishReason::kLength);
  SampleRun by_eos(Greedy(9, {"ZZZ"}));
  by_eos.Feed({IdOf("Z"), IdOf("Z"), kEos});
  EXPECT_EQ(by_eos.sample().text, "ZZ");
  EXPECT_EQ(by_eos.sample().ids.size(), 3u);
  EXPECT_EQ(by_eos.reason(), FinishReason::kStop);
}

TEST(SampleTest, AMatchInsideATokenCutsTextButKeepsTheToken) {
  // " the" holds the whole stop string: it begins before the match.
  SampleRun run(Greedy(9, {"he"}));
  run.Feed({IdOf("a"), IdOf(" the"), IdOf("b")});
  EXPECT_EQ(run.sample().text, "a t");
  EXPECT_EQ(run.sample().ids, (std::vector<int32_t>{IdOf("a"), IdOf(" the")}));
  // A token that begins at the match is not delivered.
  SampleRun at_border(Greedy(9, {" the"}));
  at_border.Feed({IdOf("a"), IdOf(" the"), IdOf("b")});
  EXPECT_EQ(at_border.sample().text, "a");
  EXPECT_EQ(at_border.sample().ids, std::vector<int32_t>{IdOf("a")});
}

TEST(SampleTest, AMatchOverTheEndOfOneTokenAndTheStartOfTheNext) {
  SampleRun run(Greedy(9, {"e?"}));
  run.Feed({IdOf(" the"), IdOf("?")});
  EXPECT_EQ(run.sample().text, " th");
  EXPECT_EQ(run.sample().ids, std::vector<int32_t>{IdOf(" the")});
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, StopStringOfSeveralCharactersAcrossUtf8Bytes) {
  const std::string stop = "\xE2\x82\xAC\xC4\x8F";  // euro sign, d with caron
  SampleRun run(Greedy(64, {stop}));
  run.FeedBytes("x\xE2\x82\xAC\xC4");
  EXPECT_EQ(run.sample().text, "x");
  run.FeedBytes("\x8F");
  EXPECT_EQ(run.sample().text, "x");
  EXPECT_EQ(run.reason(), FinishReason::kStop);
  SampleRun other(Greedy(64, {stop}));
  other.FeedBytes("\xE2\x82\xAC\xC4\x8E");
  EXPECT_EQ(other.sample().text, "\xE2\x82\xAC\xC4\x8E");
}

TEST(SampleTest, AStopStringAsTheWholeOutputLeavesNothing) {
  SampleRun run(Greedy(9, {"ab"}));
  run.FeedBytes("ab");
  EXPECT_EQ(run.sample().text, "");
  EXPECT_TRUE(run.sample().ids.empty());
  EXPECT_EQ(run.sample().events, 0);
  EXPECT_EQ(run.sample().finished->output_tokens, 0);
}

TEST(SampleTest, StopStringAtTheLimitIsAStop) {
  SampleRun run(Greedy(3, {"c"}));
  run.FeedBytes("abc");
  EXPECT_EQ(run.sample().text, "ab");
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, StopStringsAreNotSearchedInTheFirstMinTokens) {
  request::SamplingParams params = Greedy(9, {"b"});
  params.min_tokens = 2;
  SampleRun run(params);
  run.FeedBytes("bbab");
  EXPECT_EQ(run.sample().text, "bba");
  EXPECT_EQ(run.sample().ids.size(), 3u);
  EXPECT_EQ(run.reason(), FinishReason::kStop);
}

TEST(SampleTest, EveryCutOfATextIntoEventsGivesTheSameText) {
  // Prefixes of stop strings all over; only the last one matches.
  const std::string text = "aabaabbaabab";
  SampleRun run(Greedy(64, {"abab", "bbb"}));
  run.FeedBytes(text + "zzz");
  EXPECT_EQ(run.sample().text, "aabaabba");
  EXPECT_EQ(run.sample().ids.size(), 8u);
}

TEST(SampleTest, PenaltiesCountPromptAndOutputAsTheirNamesSay) {
  // Two tokens nearly level; token 9 is in the prompt.
  const auto first_two = [](request::SamplingParams params) {
    std::vector<int32_t> ids;
    const std::vector<int32_t> prompt{9};
    const std::vector<int32_t> end_ids;
    TokenSampler sampler(
        {.params = &params, .prompt_ids = prompt, .end_ids = &end_ids});
    kernels::SamplingScratch scratch;
    std::vector<float> logits(16, 0.0F);
    logits[9] = 3.0F;
    logits[4] = 2.0F;
    logits[5] = 1.9F;
    for (int i = 0; i < 3; ++i) {
      ids.push_back(sampler.Next(logits, &scratch).id);
    }
    return ids;
  };
  request::SamplingParams params = Greedy(8);
  EXPECT_EQ(first_two(params), (std::vector<int32_t>{9, 9, 9}));
  params.repetition_penalty = 2.0F;  // 9: 1.5 from the start
  EXPECT_EQ(first_two(params), (std::vector<int32_t>{4, 5, 9}));
  params = Greedy(8);
  params.presence_penalty = 1.5F;  // the prompt does not count
  EXPECT_EQ(first_two(params), (std::vector<int32_t>{9, 4, 5}));
  params = Greedy(8);
  params.frequency_penalty = 0.6F;  // 3.0, 2.4, 1.8 < 2.0
  EXPECT_EQ(first_two(params), (std::vector<int32_t>{9, 9, 4}));
}

TEST(SampleTest, LogprobsAreOfTheRawSoftmaxWithAlternatives) {
  SampleRun run(Greedy(1), /*logprobs=*/2);
  run.Feed({IdOf("a")});
  ASSERT_EQ(run.sample().logprobs.size(), 1u);
  const TokenLogprobs& logprobs = run.sample().logprobs[0];
  const double sum = std::exp(20.0) + std::exp(10.0) + 2046.0;
  // One rounding to float of a number near 5e-5.
  EXPECT_NEAR(logprobs.token.logprob, 20.0 - std::log(sum), 1e-9);
  ASSERT_EQ(logprobs.top.size(), 2u);
  EXPECT_EQ(logprobs.top[0].token_id, IdOf("a"));
  EXPECT_EQ(logprobs.top[1].token_id, 7);
}

TEST(SampleTest, SeedAndSampleIndexKeyTheDraws) {
  const auto draw = [](uint64_t seed, int32_t index) {
    request::SamplingParams params;
    params.seed = seed;
    params.max_tokens = 40;
    const std::vector<int32_t> end_ids;
    TokenSampler sampler(
        {.params = &params, .sample_index = index, .end_ids = &end_ids});
    kernels::SamplingScratch scratch;
    const std::vector<float> logits(64, 0.0F);  // uniform
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) {
      ids.push_back(sampler.Next(logits, &scratch).id);
    }
    return ids;
  };
  EXPECT_EQ(draw(5, 0), draw(5, 0));
  EXPECT_NE(draw(5, 0), draw(6, 0));
  for (int32_t i = 0; i < 4; ++i) {
    for (int32_t j = 0; j < i; ++j) EXPECT_NE(draw(5, i), draw(5, j));
  }
}

TEST(SampleTest, LogitsWithoutACandidateAppendNothing) {
  request::SamplingParams params = Greedy(4);
  const std::vector<int32_t> end_ids;
  RequestOutput output({.samples = 1, .on_ready = nullptr, .on_cut = nullptr});
  Sample sample({.sampler = {.params = &params, .end_ids = &end_ids},
                 .memory = {.blocks = {}},
                 .prompt_tokens = 1,
                 .stop_set = nullptr});
  kernels::SamplingScratch scratch;
  const std::vector<float> logits(8, std::nanf(""));
  EXPECT_EQ(sample.Advance(logits, &scratch, &output),
            Sample::Outcome::kNoCandidate);
  EXPECT_FALSE(output.Take().has_value());
}

}  // namespace
}  // namespace baton::decode_worker
