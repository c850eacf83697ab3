#include "decode_worker/scheduler/start_request.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "common/testing/status_matchers.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;

constexpr int32_t kVocab = 2048;

StartRequest Good() {
  StartRequest start;
  start.prompt_ids = {5, 6, 7};
  start.prompt_hash = HashTokenIds(start.prompt_ids);
  start.sampling.max_tokens = 4;
  return start;
}

TEST(PrepareStartTest, AcceptsAGoodRequestAndBuildsItsStopSet) {
  StartRequest start = Good();
  EXPECT_OK(PrepareStart({.vocab_size = kVocab}, &start));
  EXPECT_EQ(start.stop_set, nullptr);
  start.sampling.stop = {"\n\n", "</end>"};
  EXPECT_OK(PrepareStart({.vocab_size = kVocab}, &start));
  ASSERT_NE(start.stop_set, nullptr);
  EXPECT_FALSE(start.stop_set->empty());
}

TEST(PrepareStartTest, RefusesByFieldAndReason) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string name;
    std::function<void(StartRequest*)> change;
    absl::StatusCode code;
    ErrorReason reason;
    std::string field;
  };
  using Start = StartRequest;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto field = ErrorReason::kInvalidField;
  const auto rehash = [](Start* s) {
    s->prompt_hash = HashTokenIds(s->prompt_ids);
  };
  for (const Case& c : std::vector<Case>{
           {"empty prompt", [](Start* s) { s->prompt_ids.clear(); }, invalid,
            field, "prompt_ids"},
           {"id = vocabulary",
            [&](Start* s) {
              s->prompt_ids[1] = kVocab;
              rehash(s);
            },
            invalid, field, "prompt_ids"},
           {"negative id",
            [&](Start* s) {
              s->prompt_ids[2] = -1;
              rehash(s);
            },
            invalid, field, "prompt_ids"},
           {"one id corrupted in transit",
            [](Start* s) { s->prompt_ids[0] ^= 1; },
            absl::StatusCode::kFailedPrecondition, ErrorReason::kMismatch, ""},
           {"other model", [](Start* s) { s->model_digest[3] = 1; },
            absl::StatusCode::kFailedPrecondition, ErrorReason::kMismatch, ""},
           {"resume ids", [](Start* s) { s->resume_tokens = 1; },
            absl::StatusCode::kUnimplemented, ErrorReason::kUnsupported,
            "resume_output_ids"},
           {"max_tokens 0", [](Start* s) { s->sampling.max_tokens = 0; },
            invalid, field, "max_tokens"},
           {"min above max", [](Start* s) { s->sampling.min_tokens = 5; },
            invalid, field, "min_tokens"},
           {"NaN temperature", [=](Start* s) { s->sampling.temperature = nan; },
            invalid, field, "temperature"},
           {"stop id = vocabulary",
            [](Start* s) { s->sampling.stop_token_ids = {kVocab}; }, invalid,
            field, "stop_token_ids"},
           {"negative stop id",
            [](Start* s) { s->sampling.stop_token_ids = {-1}; }, invalid, field,
            "stop_token_ids"},
           {"largest stop id",
            [](Start* s) { s->sampling.stop_token_ids = {2147483647}; },
            invalid, field, "stop_token_ids"},
           {"empty stop string", [](Start* s) { s->sampling.stop = {""}; },
            invalid, field, "stop"},
           {"negative logprobs", [](Start* s) { s->logprobs = -1; }, invalid,
            field, "logprobs"},
           {"too many logprobs",
            [](Start* s) { s->logprobs = request::kMaxLogprobs + 1; }, invalid,
            field, "logprobs"},
           {"n = 65", [](Start* s) { s->sampling.n = 65; }, invalid, field,
            "n"},
       }) {
    StartRequest start = Good();
    c.change(&start);
    const absl::Status status = PrepareStart({.vocab_size = kVocab}, &start);
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status;
    EXPECT_EQ(request::InfoOf(status).reason, c.reason) << c.name;
    EXPECT_EQ(request::InfoOf(status).field, c.field) << c.name;
  }
}

TEST(PrepareStartTest, RefusesStopStringsWithoutATokenizer) {
  StartRequest start = Good();
  start.sampling.stop = {"x"};
  const absl::Status status =
      PrepareStart({.vocab_size = kVocab, .has_tokenizer = false}, &start);
  EXPECT_EQ(request::InfoOf(status).field, "stop");
}

}  // namespace
}  // namespace baton::decode_worker
