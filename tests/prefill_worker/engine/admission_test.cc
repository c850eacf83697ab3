// Everything that is refused at the door, and that refusing holds nothing.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "common/request/request.h"
#include "tests/prefill_worker/engine/engine_fixture.h"

namespace baton::prefill_worker {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AdmissionTest : public EngineTest {
 protected:
  void ExpectRefused(const std::shared_ptr<RecordingObserver>& observer,
                     absl::StatusCode code, ErrorReason reason,
                     const std::string& message) {
    ASSERT_TRUE(observer->status.has_value());
    EXPECT_THAT(*observer->status, StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(request::InfoOf(*observer->status).reason, reason);
    EXPECT_EQ(observer->log.size(), 1) << "told something before the refusal";
  }
};

TEST_F(AdmissionTest, AdmitsWithItsPlaceInTheBacklog) {
  Build();
  const auto first = Admit(1, 300);
  const auto second = Admit(2, 20);
  EXPECT_THAT(first->log, ElementsAre("admitted"));
  EXPECT_EQ(first->backlog, 0);
  EXPECT_EQ(second->backlog, 300);
  EXPECT_EQ(engine_->load().backlog_tokens, 320);
  EXPECT_THAT(admitted_, ElementsAre(Handoff(1), Handoff(2)));
  ExpectHeld(3, 2);
  EXPECT_EQ(pool_->counts().reserved_idle, 3);
}

TEST_F(AdmissionTest, RefusesWhatCanNeverWork) {
  Build({.max_backlog_tokens = 2'000});
  struct Case {
    std::function<void(PromptRequest*)> break_it;
    absl::StatusCode code;
    ErrorReason reason;
    const char* message;
  };
  const auto rehash = [](PromptRequest* r) {
    r->prompt_hash = HashTokenIds(r->prompt_ids);
  };
  const std::vector<Case> cases = {
      {[&](auto* r) {
         r->prompt_ids.clear();
         rehash(r);
       },
       absl::StatusCode::kInvalidArgument, ErrorReason::kInvalidField,
       "prompt_ids"},
      {[&](auto* r) {
         r->prompt_ids[3] = 2048;
         rehash(r);
       },
       absl::StatusCode::kInvalidArgument, ErrorReason::kInvalidField,
       "token id 2048"},
      {[&](auto* r) {
         r->prompt_ids[3] = -1;
         rehash(r);
       },
       absl::StatusCode::kInvalidArgument, ErrorReason::kInvalidField,
       "token id -1"},
      {[](auto* r) { r->model_digest[0] ^= 1; },
       absl::StatusCode::kFailedPrecondition, ErrorReason::kMismatch,
       "this worker has"},
      {[](auto* r) { r->prompt_hash[31] ^= 1; },
       absl::StatusCode::kFailedPrecondition, ErrorReason::kMismatch,
       "prompt hash of 10 tokens"},
      {[](auto* r) { r->prompt_ids.erase(r->prompt_ids.begin()); },
       absl::StatusCode::kFailedPrecondition, ErrorReason::kMismatch,
       "prompt hash of 9 tokens"},
      {[&](auto* r) { r->deadline = clock_.Now(); },
       absl::StatusCode::kDeadlineExceeded, ErrorReason::kDeadline,
       "before admission"},
      {[&](auto* r) {
         r->prompt_ids.resize(4097, 5);
         rehash(r);
       },
       absl::StatusCode::kInvalidArgument, ErrorReason::kContextExceeded,
       "context of 4096"},
      {[&](auto* r) {
         r->prompt_ids.resize(2'001, 5);
         rehash(r);
       },
       absl::StatusCode::kInvalidArgument, ErrorReason::kNeverFits,
       "the backlog holds 2000"},
  };
  for (const Case& c : cases) {
    PromptRequest request = Request(1, 10);
    c.break_it(&request);
    ExpectRefused(Admit(std::move(request)), c.code, c.reason, c.message);
    ExpectAllFree();
  }
  EXPECT_TRUE(admitted_.empty());
}

TEST_F(AdmissionTest, RefusesAPromptThatNoPoolCouldHold) {
  Build();
  // 16 blocks hold the whole context of the demo model, so the pool is made
  // smaller than one prompt here.
  engine_ = nullptr;
  pool_ = std::make_unique<kv::BlockPool>(2, kSlots);
  engine_ = std::make_unique<Engine>(
      EngineOptions{.model_digest = SharedModel::Get().checkpoint().digest()},
      EngineDependencies{.model = SharedModel::Get().model(),
                         .store = store_.get(),
                         .pool = pool_.get(),
                         .sender = sender_.get(),
                         .metrics = metrics_.get(),
                         .clock = &clock_,
                         .random = &random_});
  EXPECT_THAT(Admit(1, 512)->log, ElementsAre("admitted"));
  ExpectRefused(Admit(2, 513), absl::StatusCode::kInvalidArgument,
                ErrorReason::kNeverFits, "needs 3 of 2 blocks");
}

TEST_F(AdmissionTest, AdmitsUpToTheBacklogAndRefusesTheTokenBeyond) {
  Build({.max_backlog_tokens = 1'000});
  EXPECT_THAT(Admit(1, 600)->log, ElementsAre("admitted"));
  const auto refused = Admit(2, 401);
  ExpectRefused(refused, absl::StatusCode::kResourceExhausted,
                ErrorReason::kOverloaded, "backlog of 600");
  EXPECT_GT(request::InfoOf(*refused->status).retry_delay_ms, 0);
  EXPECT_THAT(Admit(3, 400)->log, ElementsAre("admitted"));
  // What has been computed is no backlog any more.
  RunSteps();
  EXPECT_EQ(engine_->load().backlog_tokens, 0);
  EXPECT_THAT(Admit(4, 1'000)->log, ElementsAre("admitted"));
}

TEST_F(AdmissionTest, SpreadsTheRetryDelays) {
  Build({.max_backlog_tokens = 1'000});
  Admit(1, 1'000);
  std::vector<int64_t> delays;
  for (uint64_t n = 2; n < 12; ++n) {
    const auto refused = Admit(n, 10);
    delays.push_back(request::InfoOf(*refused->status).retry_delay_ms);
  }
  const auto [low, high] = std::minmax_element(delays.begin(), delays.end());
  EXPECT_GE(*low, 25);
  EXPECT_LE(*high, 3'000);
  EXPECT_LT(*low, *high);
}

TEST_F(AdmissionTest, RefusesWhenBlocksAreShortAndHoldsNone) {
  Build();
  EXPECT_THAT(Admit(1, 15 * 256)->log, ElementsAre("admitted"));
  ExpectRefused(Admit(2, 257), absl::StatusCode::kResourceExhausted,
                ErrorReason::kOverloaded, "needs 2 blocks");
  ExpectHeld(15, 1);
  EXPECT_THAT(Admit(3, 256)->log, ElementsAre("admitted"));
  ExpectHeld(16, 2);
}

TEST_F(AdmissionTest, RefusesWhenSlotsAreShort) {
  Build();
  for (uint64_t n = 1; n <= kSlots; ++n) {
    EXPECT_THAT(Admit(n, 1)->log, ElementsAre("admitted"));
  }
  ExpectRefused(Admit(9, 1), absl::StatusCode::kResourceExhausted,
                ErrorReason::kOverloaded, "0 slots are free");
}

TEST_F(AdmissionTest, RefusesTheSameOrAnOlderAttemptAndKeepsTheFirst) {
  Build();
  const auto first = Admit(1, 300, /*attempt=*/2);
  const auto duplicate = Admit(1, 300, /*attempt=*/2);
  ExpectRefused(duplicate, absl::StatusCode::kAlreadyExists,
                ErrorReason::kStale, "attempt 2");
  ExpectRefused(Admit(1, 300, /*attempt=*/1), absl::StatusCode::kAlreadyExists,
                ErrorReason::kStale, "attempt 2");
  // The refused call's cancel does not touch the prompt that lives.
  engine_->Cancel(duplicate.get(), absl::CancelledError("gone"));
  EXPECT_THAT(first->log, ElementsAre("admitted"));
  ExpectHeld(2, 1);
}

TEST_F(AdmissionTest, ANewerAttemptEndsTheOlderOne) {
  Build();
  const auto older = Admit(1, 300, /*attempt=*/1);
  const auto newer = Admit(1, 300, /*attempt=*/2);
  ASSERT_TRUE(older->status.has_value());
  EXPECT_THAT(*older->status, StatusIs(absl::StatusCode::kAborted,
                                       HasSubstr("superseded by attempt 2")));
  EXPECT_THAT(newer->log, ElementsAre("admitted"));
  ExpectHeld(2, 1);
}

TEST_F(AdmissionTest, RefusesWhileDrainingAndFinishesWhatRuns) {
  Build();
  const auto running = Admit(1, 300);
  engine_->BeginDrain();
  ExpectRefused(Admit(2, 10), absl::StatusCode::kUnavailable,
                ErrorReason::kDraining, "drains");
  Attach(running, 1);
  RunSteps();
  Deliver(handoff::SenderEventKind::kCommitted, 1);
  Deliver(handoff::SenderEventKind::kQuiet, 1);
  EXPECT_OK(*running->status);
  ExpectAllFree();
}

}  // namespace
}  // namespace baton::prefill_worker
