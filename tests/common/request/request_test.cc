#include "common/request/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "common/testing/status_matchers.h"

namespace baton::request {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

SamplingParams Good() {
  SamplingParams p;
  p.max_tokens = 16;
  return p;
}

TEST(ValidateSampling, AcceptsTheEdges) {
  for (const auto& change : std::vector<std::function<void(SamplingParams&)>>{
           [](auto&) {}, [](auto& p) { p.temperature = 0; },
           [](auto& p) { p.temperature = 1e-30F; },
           [](auto& p) { p.top_p = 1e-6F; }, [](auto& p) { p.top_k = 1; },
           [](auto& p) { p.min_p = 0.999F; }, [](auto& p) { p.n = 64; },
           [](auto& p) { p.min_tokens = 16; },
           [](auto& p) { p.stop.assign(64, std::string(1024, 'x')); },
           [](auto& p) {
             p.stop_token_ids = {0, 99};
           },
           [](auto& p) { p.presence_penalty = -2; }}) {
    SamplingParams p = Good();
    change(p);
    EXPECT_OK(ValidateSampling(p, 100));
  }
}

TEST(ValidateSampling, RefusesEachBadFieldByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    const char* field;
    std::function<void(SamplingParams&)> change;
  };
  for (const Case& c : std::vector<Case>{
           {"temperature", [](auto& p) { p.temperature = -1; }},
           {"temperature", [&](auto& p) { p.temperature = nan; }},
           {"temperature", [&](auto& p) { p.temperature = inf; }},
           {"top_p", [](auto& p) { p.top_p = 0; }},
           {"top_p", [](auto& p) { p.top_p = 1.01F; }},
           {"top_p", [&](auto& p) { p.top_p = nan; }},
           {"top_k", [](auto& p) { p.top_k = -1; }},
           {"min_p", [](auto& p) { p.min_p = 1; }},
           {"min_p", [&](auto& p) { p.min_p = nan; }},
           {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
           {"presence_penalty", [](auto& p) { p.presence_penalty = 2.1F; }},
           {"frequency_penalty", [&](auto& p) { p.frequency_penalty = nan; }},
           {"max_tokens", [](auto& p) { p.max_tokens = 0; }},
           {"min_tokens", [](auto& p) { p.min_tokens = 17; }},
           {"n", [](auto& p) { p.n = 65; }},
           {"n", [](auto& p) { p.n = 0; }},
           {"stop", [](auto& p) { p.stop.assign(10'000, "x"); }},
           {"stop", [](auto& p) { p.stop = {""}; }},
           {"stop", [](auto& p) { p.stop = {std::string(1025, 'x')}; }},
           {"stop_token_ids", [](auto& p) { p.stop_token_ids = {100}; }},
           {"stop_token_ids", [](auto& p) { p.stop_token_ids = {-1}; }},
       }) {
    SamplingParams p = Good();
    c.change(p);
    const absl::Status status = ValidateSampling(p, 100);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 ::testing::AnyOf(HasSubstr("expected"),
                                                  HasSubstr("at most"))))
        << c.field;
    EXPECT_EQ(InfoOf(status).field, c.field);
    EXPECT_EQ(InfoOf(status).reason, ErrorReason::kInvalidField);
  }
}

TEST(ErrorInfo, SurvivesTheStatus) {
  const absl::Status status =
      MakeError(absl::StatusCode::kResourceExhausted, "full",
                {.reason = ErrorReason::kOverloaded,
                 .field = "with space",
                 .retry_delay_ms = 250});
  EXPECT_EQ(InfoOf(status).reason, ErrorReason::kOverloaded);
  EXPECT_EQ(InfoOf(status).field, "with space");
  EXPECT_EQ(InfoOf(status).retry_delay_ms, 250);
  EXPECT_EQ(InfoOf(absl::InternalError("x")).reason, ErrorReason::kUnspecified);
}

TEST(PositionsFor, LeavesOutTheLastToken) {
  EXPECT_EQ(PositionsFor(4095, 1), 4095);
  EXPECT_EQ(PositionsFor(1, 4096), 4096);
}

}  // namespace
}  // namespace baton::request
