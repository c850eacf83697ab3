// Reads a request's output to where it stands and checks that events are
// numbered without gaps and never empty.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "decode_worker/output/request_output.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::decode_worker {

// Of the demo tokenizer; lives for ever.
inline const OutputVocabulary& DemoVocabulary() {
  static const auto* const vocabulary =
      new OutputVocabulary(&testing::DemoTokenizer(), /*end_ids=*/{1});
  return *vocabulary;
}

struct CollectedSample {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  int64_t events = 0;
  std::optional<SampleFinishedEvent> finished;
};

struct Collected {
  explicit Collected(int32_t n) : samples(static_cast<size_t>(n)) {}

  std::vector<CollectedSample> samples;
  std::vector<std::string> order;  // kinds of events, tokens left out
  std::optional<handoff::Ticket> ticket;
  std::vector<HandoffFailedEvent> failures;
  std::optional<ReticketedEvent> reticketed;
  std::optional<CommittedEvent> committed;
  std::optional<absl::Status> end;

  void Drain(RequestOutput* output) {
    while (std::optional<OutputEvent> event = output->Take()) {
      output->Written();
      Add(*event);
    }
  }

  void Add(const OutputEvent& event) {
    EXPECT_FALSE(end.has_value()) << "an event after the end";
    std::visit([this](const auto& e) { On(e); }, event);
  }

 private:
  void On(const ReservedEvent& event) {
    ticket = event.ticket;
    order.push_back("reserved");
  }
  void On(const ReticketedEvent& event) {
    reticketed = event;
    order.push_back("reticketed");
  }
  void On(const CommittedEvent& event) {
    committed = event;
    order.push_back("committed");
  }
  void On(const HandoffFailedEvent& event) {
    failures.push_back(event);
    order.push_back("handoff_failed");
  }
  void On(const SampleFinishedEvent& event) {
    CollectedSample& sample = samples.at(static_cast<size_t>(event.index));
    EXPECT_FALSE(sample.finished.has_value());
    sample.finished = event;
    EXPECT_EQ(event.events, sample.events);
    EXPECT_EQ(event.output_tokens, static_cast<int32_t>(sample.ids.size()));
    order.push_back("finished");
  }
  void On(const EndEvent& event) { end = event.status; }
  void On(const TokensEvent& event) {
    EXPECT_TRUE(committed.has_value()) << "tokens before Committed";
    CollectedSample& sample = samples.at(static_cast<size_t>(event.index));
    EXPECT_FALSE(sample.finished.has_value()) << "tokens after Finished";
    EXPECT_EQ(event.sequence, sample.events++);
    EXPECT_FALSE(event.token_ids.empty() && event.text.empty());
    sample.ids.insert(sample.ids.end(), event.token_ids.begin(),
                      event.token_ids.end());
    sample.text += event.text;
    sample.logprobs.insert(sample.logprobs.end(), event.logprobs.begin(),
                           event.logprobs.end());
  }
};

}  // namespace baton::decode_worker
