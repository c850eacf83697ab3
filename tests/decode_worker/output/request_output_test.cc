#include "decode_worker/output/request_output.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "decode_worker/output/output_pump.h"
#include "tests/common/tokenizer/test_tokenizers.h"
#include "tests/decode_worker/collected.h"

namespace baton::decode_worker {
namespace {

using request::FinishReason;
using testing::DemoTokenizer;

std::vector<OutputToken> TokensOf(absl::string_view text) {
  const std::vector<int32_t> ids =
      DemoTokenizer().Encode(text, tokenizer::AddedTokens::kIgnore).value();
  std::vector<OutputToken> tokens;
  for (const int32_t id : ids) tokens.push_back({.id = id});
  return tokens;
}

// One token per byte: the demo vocabulary has every byte.
std::vector<OutputToken> BytesOf(absl::string_view bytes) {
  std::vector<OutputToken> tokens;
  for (size_t i = 0; i < bytes.size(); ++i) {
    tokens.push_back(
        {.id = *DemoTokenizer().IdOf(bytes.substr(i, 1)), .top = {}});
  }
  return tokens;
}

class RequestOutputTest : public ::testing::Test {
 protected:
  std::unique_ptr<RequestOutput> Make(int32_t samples,
                                      int32_t max_event_tokens = 1024) {
    auto output = std::make_unique<RequestOutput>(
        RequestOutputOptions{.samples = samples,
                             .vocabulary = &DemoVocabulary(),
                             .clock = &clock_,
                             .on_ready = nullptr,
                             .on_cut = nullptr,
                             .max_event_tokens = max_event_tokens});
    output->Push(CommittedEvent{.attempt = 1});
    return output;
  }
  testing::FakeClock clock_;
};

TEST_F(RequestOutputTest, SendsControlThenTokensThenFinishedThenEnd) {
  const auto output = Make(1);
  std::vector<OutputToken> tokens = TokensOf("Hello there");
  output->Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kLength});
  output->End(absl::OkStatus());
  Collected got(1);
  got.Drain(output.get());
  EXPECT_EQ(got.samples[0].text, "Hello there");
  EXPECT_EQ(got.samples[0].events, 1);  // several tokens in one message
  EXPECT_EQ(got.order, (std::vector<std::string>{"committed", "finished"}));
  ASSERT_TRUE(got.end.has_value());
  EXPECT_OK(*got.end);
  EXPECT_FALSE(output->Take().has_value());
}

TEST_F(RequestOutputTest, NeverSplitsACharacterOverEvents) {
  const std::string text = "na\xC3\xAFve \xF0\x9F\xA7\x91\xE2\x80\x8D \xC4\x8F";
  const auto output = Make(1);
  Collected got(1);
  std::vector<OutputToken> tokens = BytesOf(text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool last = i + 1 == tokens.size();
    output->Append(
        0, absl::MakeSpan(&tokens[i], 1),
        last ? std::optional(SampleEnd{FinishReason::kLength}) : std::nullopt);
    got.Drain(output.get());
    EXPECT_EQ(got.samples[0].text.find("\xEF\xBF\xBD"), std::string::npos);
  }
  EXPECT_EQ(got.samples[0].text, text);
  EXPECT_EQ(got.samples[0].ids.size(), text.size());
}

TEST_F(RequestOutputTest, ReplacesACharacterThatNeverCompletes) {
  for (const auto& [bytes, text] :
       std::vector<std::pair<std::string, std::string>>{
           {"a\xC4", "a\xEF\xBF\xBD"},                  // cut by max_tokens
           {"\xD7 \x90", "\xEF\xBF\xBD \xEF\xBF\xBD"},  // space in between
       }) {
    const auto output = Make(1);
    std::vector<OutputToken> tokens = BytesOf(bytes);
    output->Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kLength});
    Collected got(1);
    got.Drain(output.get());
    EXPECT_EQ(got.samples[0].text, text);
  }
}

TEST_F(RequestOutputTest, DeliversTheEndTokenWithoutText) {
  for (const int32_t end_id : {1, *DemoTokenizer().IdOf("What")}) {
    const auto output = Make(1);
    std::vector<OutputToken> tokens = TokensOf("Hi");
    const size_t hi = tokens.size();
    tokens.push_back({.id = end_id, .top = {}});
    output->Append(
        0, absl::MakeSpan(tokens),
        SampleEnd{.reason = FinishReason::kStop, .silent_last_token = true});
    Collected got(1);
    got.Drain(output.get());
    EXPECT_EQ(got.samples[0].text, "Hi");
    EXPECT_EQ(got.samples[0].ids.size(), hi + 1);
    EXPECT_EQ(got.samples[0].ids.back(), end_id);
  }
}

TEST_F(RequestOutputTest, LeavesOutSentenceMarksAndKeepsOtherAddedTokens) {
  const auto output = Make(1);
  std::vector<OutputToken> tokens;
  for (const int32_t id : {0, 2, 1, *DemoTokenizer().IdOf("</think>"),
                           *DemoTokenizer().IdOf("What")}) {
    tokens.push_back({.id = id});
  }
  output->Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kLength});
  Collected got(1);
  got.Drain(output.get());
  EXPECT_EQ(got.samples[0].text, "</think>What");
  EXPECT_EQ(got.samples[0].ids.size(), 5u);
}

TEST_F(RequestOutputTest, CutsTextInsideATokenBeforeAStopString) {
  const auto output = Make(1);
  Collected got(1);
  std::vector<OutputToken> first = BytesOf("ab");
  output->Append(0, absl::MakeSpan(first), std::nullopt);
  got.Drain(output.get());
  std::vector<OutputToken> rest = BytesOf("cd");
  output->Append(0, absl::MakeSpan(rest),
                 SampleEnd{.reason = FinishReason::kStop, .text_bytes = 3});
  got.Drain(output.get());
  EXPECT_EQ(got.samples[0].text, "abc");
  EXPECT_EQ(got.samples[0].finished->output_tokens, 4);
}

TEST_F(RequestOutputTest, SplitsWhatWaitedLongIntoBoundedEvents) {
  const auto output = Make(1, /*max_event_tokens=*/4);
  std::string text;
  for (int i = 0; i < 10; ++i) {
    std::vector<OutputToken> tokens = BytesOf(std::string(1, 'a' + char(i)));
    text += static_cast<char>('a' + i);
    output->Append(0, absl::MakeSpan(tokens),
                   i == 9 ? std::optional(SampleEnd{FinishReason::kLength})
                          : std::nullopt);
  }
  output->End(absl::OkStatus());
  Collected got(1);
  got.Drain(output.get());
  EXPECT_EQ(got.samples[0].events, 3);  // 4 + 4 + 2
  EXPECT_EQ(got.samples[0].text, text);
  EXPECT_OK(*got.end);
}

TEST_F(RequestOutputTest, ServesSamplesInTurn) {
  const auto output = Make(3);
  for (int round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < 3; ++i) {
      std::vector<OutputToken> token = BytesOf("x");
      output->Append(i, absl::MakeSpan(token), std::nullopt);
    }
  }
  std::vector<int32_t> order;
  while (auto event = output->Take()) {
    if (const auto* tokens = std::get_if<TokensEvent>(&*event)) {
      order.push_back(tokens->index);
      EXPECT_EQ(tokens->token_ids.size(), 2u);
    }
  }
  EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2}));
}

TEST_F(RequestOutputTest, AnErrorDropsWhatWasNotTakenAndNeverFinishes) {
  const auto output = Make(1);
  std::vector<OutputToken> tokens = TokensOf("Hello");
  output->Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kStop});
  output->End(absl::OkStatus());
  // Nobody has read: the call is cut.
  output->End(absl::ResourceExhaustedError("slow"));
  Collected got(1);
  got.Drain(output.get());
  EXPECT_EQ(got.end->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(got.samples[0].finished.has_value());
  EXPECT_TRUE(got.samples[0].ids.empty());
}

TEST_F(RequestOutputTest, AnErrorAfterTheEndWasTakenChangesNothing) {
  const auto output = Make(1);
  output->Append(0, {}, SampleEnd{FinishReason::kStop});
  output->End(absl::OkStatus());
  Collected got(1);
  got.Drain(output.get());
  output->End(absl::AbortedError("late"));
  got.Drain(output.get());
  EXPECT_OK(*got.end);
}

TEST_F(RequestOutputTest, StallsFromTakeUntilWritten) {
  const auto output = Make(1);
  clock_.Advance(absl::Seconds(50));
  EXPECT_EQ(output->StalledFor(clock_.Now()), absl::ZeroDuration());
  ASSERT_TRUE(output->Take().has_value());
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(output->StalledFor(clock_.Now()), absl::Seconds(3));
  output->Written();
  EXPECT_EQ(output->StalledFor(clock_.Now()), absl::ZeroDuration());
}

TEST_F(RequestOutputTest, GivesBytesOfEveryAlternative) {
  RequestOutput output({.samples = 1,
                        .logprobs = 2,
                        .vocabulary = &DemoVocabulary(),
                        .clock = &clock_,
                        .on_ready = nullptr,
                        .on_cut = nullptr});
  output.Push(CommittedEvent{.attempt = 1});
  const int32_t half = *DemoTokenizer().IdOf("\xE2");  // part of a character
  std::vector<OutputToken> tokens{
      {.id = half, .logprob = -0.5F, .top = {{half, -0.5F}, {1, -2.0F}}}};
  output.Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kLength});
  Collected got(1);
  got.Drain(&output);
  ASSERT_EQ(got.samples[0].logprobs.size(), 1u);
  const TokenLogprobs& logprobs = got.samples[0].logprobs[0];
  EXPECT_EQ(logprobs.token.token_bytes, "\xE2");
  EXPECT_EQ(logprobs.token.logprob, -0.5F);
  ASSERT_EQ(logprobs.top.size(), 2u);
  EXPECT_EQ(logprobs.top[0].token_bytes, "\xE2");
  EXPECT_FALSE(logprobs.top[1].token_bytes.empty());
}

TEST_F(RequestOutputTest, WorksWithoutATokenizer) {
  const OutputVocabulary none(/*tokenizer=*/nullptr, {1});
  RequestOutput output({.samples = 1,
                        .vocabulary = &none,
                        .clock = &clock_,
                        .on_ready = nullptr,
                        .on_cut = nullptr});
  output.Push(CommittedEvent{.attempt = 1});
  std::vector<OutputToken> tokens{{.id = 77, .top = {}}};
  output.Append(0, absl::MakeSpan(tokens), SampleEnd{FinishReason::kLength});
  Collected got(1);
  got.Drain(&output);
  EXPECT_EQ(got.samples[0].ids, std::vector<int32_t>{77});
  EXPECT_EQ(got.samples[0].text, "");
}

TEST(OutputPumpTest, NotifiesEachOutputOfABatchOnceAndAllBeforeItEnds) {
  int notified[2] = {0, 0};
  std::shared_ptr<RequestOutput> outputs[2];
  for (int i = 0; i < 2; ++i) {
    outputs[i] = std::make_shared<RequestOutput>(
        RequestOutputOptions{.samples = 1,
                             .on_ready = [&notified, i] { ++notified[i]; },
                             .on_cut = nullptr});
  }
  {
    OutputPump pump;
    OutputPump::Outputs batch{outputs[0], outputs[1], outputs[0]};
    pump.Notify(&batch);
    EXPECT_TRUE(batch.empty());
    pump.Notify(&batch);  // nothing to do
  }
  EXPECT_EQ(notified[0], 1);
  EXPECT_EQ(notified[1], 1);
}

}  // namespace
}  // namespace baton::decode_worker
