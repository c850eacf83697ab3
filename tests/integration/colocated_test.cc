// The same requests through one process with both roles, through real
// processes, and through real processes after a rejected first attempt: the
// same tokens, texts and log-probabilities, bit for bit.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"
#include "tests/integration/colocated.h"

namespace baton::integration {
namespace {

struct Sample {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<std::string> logprobs;  // TokenLogprobs, serialised
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  int32_t output_tokens = -1;
  friend bool operator==(const Sample&, const Sample&) = default;
};

struct Answer {
  absl::Status status;
  std::vector<Sample> samples;
};

Answer Ask(const cli::Client& client, const v1::GenerateRequest& request) {
  Answer answer;
  answer.samples.resize(static_cast<size_t>(request.sampling().n()));
  answer.status = client.Generate(
      request, absl::Seconds(120), [&](const v1::GenerateResponse& event) {
        if (event.has_delta()) {
          const v1::Delta& delta = event.delta();
          Sample& sample =
              answer.samples.at(static_cast<size_t>(delta.index()));
          sample.ids.insert(sample.ids.end(), delta.token_ids().begin(),
                            delta.token_ids().end());
          sample.text += delta.text();
          for (const v1::TokenLogprobs& token : delta.logprobs()) {
            sample.logprobs.push_back(token.SerializeAsString());
          }
        } else if (event.has_finished()) {
          const v1::Finished& finished = event.finished();
          Sample& sample =
              answer.samples.at(static_cast<size_t>(finished.index()));
          sample.reason = finished.finish_reason();
          sample.output_tokens = finished.usage().output_tokens();
        }
        return true;
      });
  return answer;
}

struct Case {
  std::string name;
  v1::GenerateRequest request;
};

// Greedy and seeded, one and four samples, every length class of a prompt,
// each parameter of the sampler, with and without log-probabilities.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int32_t prompt_tokens) {
    Case c{.name = name, .request = {}};
    for (int32_t i = 0; i < prompt_tokens; ++i) {
      c.request.mutable_token_ids()->add_ids(300 +
                                             (i * 11 + prompt_tokens) % 1500);
    }
    c.request.set_return_token_ids(true);
    v1::SamplingParams* const sampling = c.request.mutable_sampling();
    sampling->set_temperature(0);
    sampling->set_n(1);
    sampling->set_max_tokens(16);
    sampling->set_ignore_eos(true);
    cases.push_back(std::move(c));
    return &cases.back().request;
  };
  for (const int32_t tokens : {1, 3, 4, 127, 128, 129, 256, 257, 513}) {
    add(absl::StrCat("greedy ", tokens), tokens);
  }
  add("greedy logprobs", 100)->set_logprobs(5);
  for (const int32_t n : {1, 4}) {
    for (const float top_p : {1.0F, 0.8F}) {
      for (const bool logprobs : {false, true}) {
        v1::GenerateRequest* const request =
            add(absl::StrCat("seeded n=", n, " top_p=", top_p,
                             logprobs ? " logprobs" : ""),
                40 + 70 * n);
        request->mutable_sampling()->set_temperature(1);
        request->mutable_sampling()->set_top_p(top_p);
        request->mutable_sampling()->set_n(n);
        request->mutable_sampling()->set_seed(
            static_cast<uint64_t>(cases.size()));
        if (logprobs) request->set_logprobs(3);
      }
    }
  }
  {
    v1::SamplingParams* const sampling =
        add("penalties, top_k, min_p", 300)->mutable_sampling();
    sampling->set_temperature(1.3F);
    sampling->set_seed(99);
    sampling->set_n(2);
    sampling->set_top_k(40);
    sampling->set_min_p(0.01F);
    sampling->set_repetition_penalty(1.1F);
    sampling->set_presence_penalty(0.2F);
    sampling->set_frequency_penalty(0.1F);
    sampling->set_max_tokens(140);  // over a C128 border
  }
  for (const bool greedy : {true, false}) {
    v1::GenerateRequest* const request =
        add(greedy ? "chat, greedy" : "chat, seeded, n=4", 0);
    v1::Message* const message = request->mutable_chat()->add_messages();
    message->set_role(v1::ROLE_USER);
    message->set_content("My name is Ada and I live in Oslo. Who am I?");
    request->mutable_sampling()->set_ignore_eos(false);
    request->mutable_sampling()->set_max_tokens(48);
    if (!greedy) {
      request->mutable_sampling()->set_temperature(1);
      request->mutable_sampling()->set_seed(5);
      request->mutable_sampling()->set_n(4);
    }
  }
  return cases;
}

void ExpectSame(const std::vector<Answer>& got,
                const std::vector<Answer>& want) {
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    ASSERT_OK(got[i].status);
    ASSERT_EQ(got[i].samples.size(), want[i].samples.size());
    for (size_t s = 0; s < got[i].samples.size(); ++s) {
      const Sample& sample = got[i].samples[s];
      EXPECT_EQ(sample.ids, want[i].samples[s].ids) << "sample " << s;
      EXPECT_EQ(sample.text, want[i].samples[s].text) << "sample " << s;
      EXPECT_EQ(sample, want[i].samples[s]) << "sample " << s;
    }
  }
}

class ColocatedMode : public ::testing::Test {
 protected:
  // The answers of one process with both roles; computed once.
  static void SetUpTestSuite() {
    const int64_t bugs = BugCount();
    auto started = Colocated::Start({.routers = 1});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    golden_ = new std::vector<Answer>;
    for (const Case& c : Cases()) {
      golden_->push_back(Ask((*started)->client(), c.request));
    }
    EXPECT_GT((*started)->received_bytes(), 0) << "no hand-off took place";
    EXPECT_OK((*started)->WaitUntilIdle(absl::Seconds(5),
                                        Colocated::Calls::kForgotten));
    EXPECT_OK((*started)->StopAndAudit());
    EXPECT_EQ(BugCount(), bugs);
  }
  static void TearDownTestSuite() {
    delete golden_;
    golden_ = nullptr;
  }
  static std::vector<Answer>* golden_;
};

std::vector<Answer>* ColocatedMode::golden_ = nullptr;

TEST_F(ColocatedMode, AnswersEveryRequestInFull) {
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(golden_->size(), cases.size());
  ASSERT_GE(cases.size(), 20u);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    ASSERT_OK((*golden_)[i].status);
    const v1::GenerateRequest& request = cases[i].request;
    for (const Sample& sample : (*golden_)[i].samples) {
      EXPECT_EQ(sample.output_tokens, static_cast<int32_t>(sample.ids.size()));
      if (request.sampling().ignore_eos()) {
        EXPECT_EQ(sample.output_tokens, request.sampling().max_tokens());
      }
      EXPECT_EQ(sample.logprobs.size(),
                request.has_logprobs() ? sample.ids.size() : 0u);
    }
    // The chat has one answer at any temperature.
    if (request.sampling().n() == 4 && !request.has_chat()) {
      for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b < a; ++b) {
          EXPECT_NE((*golden_)[i].samples[a].ids, (*golden_)[i].samples[b].ids)
              << "samples " << b << " and " << a;
        }
      }
    }
  }
}

TEST_F(ColocatedMode, AgreesWithItself) {
  auto started = Colocated::Start({.routers = 1, .poison_free_pages = true});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  std::vector<Answer> answers;
  for (const Case& c : Cases()) {
    answers.push_back(Ask((*started)->client(), c.request));
  }
  ExpectSame(answers, *golden_);
  EXPECT_OK((*started)->WaitUntilIdle(absl::Seconds(5)));
  EXPECT_OK((*started)->StopAndAudit());
}

TEST_F(ColocatedMode, AgreesWithSeparateProcesses) {
  auto started = Cluster::Start({});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  std::vector<Answer> answers;
  for (const Case& c : Cases()) {
    answers.push_back(Ask(cluster.client(), c.request));
  }
  ExpectSame(answers, *golden_);
  EXPECT_EQ(cluster.Value("router-0",
                          "baton_retries_total{reason=\"handoff_failed\"}"),
            0);
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

TEST_F(ColocatedMode, AgreesWithSeparateProcessesAfterARejectedAttempt) {
  // What kills the first attempt, in turn; the second is left alone.
  const std::vector<std::string> faults = {
      "transfer.corrupt_segment*1=fire", "handoff.flip_byte@l0.window*1=fire",
      "handoff.wrong_logits*1=fire", "handoff.omit_region@l3.window*1=fire"};
  auto started = Cluster::Start({});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  const auto retries = [&] {
    return cluster.Value("router-0",
                         "baton_retries_total{reason=\"handoff_failed\"}");
  };
  std::vector<Answer> answers;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const std::string& fault = faults[answers.size() % faults.size()];
    ASSERT_OK(cluster.Arm("prefill-0", fault));
    const double before = retries();
    answers.push_back(Ask(cluster.client(), c.request));
    EXPECT_EQ(retries(), before + 1) << fault << " killed no attempt";
  }
  std::printf("%zu requests, %.0f re-tickets\n", answers.size(), retries());
  ExpectSame(answers, *golden_);
  EXPECT_OK(cluster.Arm("prefill-0", ""));
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

}  // namespace
}  // namespace baton::integration
