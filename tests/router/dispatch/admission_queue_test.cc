#include "router/dispatch/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/request/request.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "router/dispatch/output_ledger.h"
#include "router/dispatch/timer_queue.h"

namespace baton::router::dispatch {
namespace {

using baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Entry = std::shared_ptr<AdmissionQueue::Entry>;

class AdmissionQueueTest : public ::testing::Test {
 protected:
  AdmissionQueueTest() : queue_({.max_running = 2, .max_waiting = 2}) {}

  Entry Enter(const std::string& name) {
    EXPECT_TRUE(queue_.TryArrive());
    auto entry = std::make_shared<AdmissionQueue::Entry>();
    entry->granted = [this, name] { granted_.push_back(name); };
    queue_.Enter(entry);
    return entry;
  }

  AdmissionQueue queue_;
  std::vector<std::string> granted_;
};

TEST_F(AdmissionQueueTest, RunsUpToItsLimitThenInOrder) {
  const Entry a = Enter("a");
  const Entry b = Enter("b");
  const Entry c = Enter("c");
  const Entry d = Enter("d");
  EXPECT_THAT(granted_, ElementsAre("a", "b"));
  EXPECT_EQ(queue_.running(), 2);
  EXPECT_EQ(queue_.waiting(), 2);
  EXPECT_FALSE(queue_.TryArrive());
  queue_.Leave(a);
  EXPECT_THAT(granted_, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(queue_.TryArrive());
  queue_.Leave(nullptr);
  queue_.Leave(d);  // while it waits
  queue_.Leave(b);
  queue_.Leave(c);
  EXPECT_EQ(queue_.running(), 0);
  EXPECT_EQ(queue_.waiting(), 0);
}

TEST_F(AdmissionQueueTest, OneProbeAtATimeWhileWorkersAreFull) {
  const Entry a = Enter("a");
  const Entry b = Enter("b");
  queue_.Requeue(b);
  queue_.Requeue(a);  // to the front: it was first
  const Entry c = Enter("c");
  granted_.clear();
  queue_.CapacityFreed();
  EXPECT_THAT(granted_, ElementsAre("a"));
  queue_.CapacityFreed();  // the probe has not settled
  EXPECT_THAT(granted_, ElementsAre("a"));
  queue_.Settled(a);
  EXPECT_THAT(granted_, ElementsAre("a", "b"));
  queue_.Requeue(b);  // full again
  EXPECT_THAT(granted_, ElementsAre("a", "b"));
  queue_.CapacityFreed();
  EXPECT_THAT(granted_, ElementsAre("a", "b", "b"));
  queue_.Settled(b);
  queue_.Leave(a);
  EXPECT_THAT(granted_, ElementsAre("a", "b", "b", "c"));
  queue_.Settled(c);
  queue_.Leave(b);
  queue_.Leave(c);
}

TEST_F(AdmissionQueueTest, ALeavingProbeLetsTheNextTry) {
  const Entry a = Enter("a");
  queue_.Requeue(a);
  const Entry b = Enter("b");
  granted_.clear();
  queue_.CapacityFreed();
  EXPECT_THAT(granted_, ElementsAre("a"));
  queue_.Leave(a);
  EXPECT_THAT(granted_, ElementsAre("a", "b"));
  queue_.Leave(b);
}

TEST_F(AdmissionQueueTest, NewcomersDoNotOvertake) {
  const Entry a = Enter("a");
  queue_.Requeue(a);
  granted_.clear();
  const Entry b = Enter("b");
  EXPECT_THAT(granted_, IsEmpty());
  queue_.Leave(a);
  queue_.Leave(b);
}

TEST(TimerQueueTest, FiresInOrderAndOnlyWhenDue) {
  baton::testing::FakeClock clock;
  TimerQueue timers(&clock);
  std::vector<int> fired;
  const absl::Time start = clock.Now();
  timers.Schedule(start + absl::Seconds(2), [&] { fired.push_back(2); });
  timers.Schedule(start + absl::Seconds(1), [&] {
    fired.push_back(1);
    timers.Schedule(start + absl::Seconds(1), [&] { fired.push_back(11); });
  });
  const auto cancelled =
      timers.Schedule(start + absl::Seconds(1), [&] { fired.push_back(9); });
  timers.Cancel(cancelled);
  EXPECT_EQ(timers.RunDue(), 0);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(timers.RunDue(), 2);
  EXPECT_THAT(fired, ElementsAre(1, 11));
  clock.Advance(absl::Seconds(1));
  timers.RunDue();
  EXPECT_THAT(fired, ElementsAre(1, 11, 2));
}

TEST(OutputLedgerTest, AcceptsWhatAddsUp) {
  OutputLedger ledger(2);
  EXPECT_OK(ledger.CheckTokens({.index = 1, .sequence = 0, .token_ids = {1}}));
  EXPECT_OK(
      ledger.CheckTokens({.index = 0, .sequence = 0, .token_ids = {1, 2}}));
  EXPECT_OK(ledger.CheckTokens({.index = 1, .sequence = 1, .token_ids = {3}}));
  EXPECT_OK(
      ledger.CheckFinished({.index = 1, .output_tokens = 2, .events = 2}));
  EXPECT_FALSE(ledger.complete());
  EXPECT_OK(
      ledger.CheckFinished({.index = 0, .output_tokens = 2, .events = 1}));
  EXPECT_TRUE(ledger.complete());
  EXPECT_EQ(ledger.output_tokens(), 4);
}

TEST(OutputLedgerTest, RefusesWhatDoesNot) {
  const auto started = [] {
    OutputLedger ledger(1);
    EXPECT_OK(ledger.CheckTokens({.sequence = 0, .token_ids = {1}}));
    return ledger;
  };
  const auto internal = StatusIs(absl::StatusCode::kInternal);
  EXPECT_THAT(started().CheckTokens({.sequence = 2}), internal);  // gap
  EXPECT_THAT(started().CheckTokens({.sequence = 0}), internal);  // doubled
  EXPECT_THAT(started().CheckTokens({.index = 1}), internal);
  EXPECT_THAT(started().CheckTokens({.index = -1}), internal);
  EXPECT_THAT(started().CheckFinished({.output_tokens = 2, .events = 1}),
              internal);
  EXPECT_THAT(started().CheckFinished({.output_tokens = 1, .events = 2}),
              internal);
  OutputLedger ended = started();
  EXPECT_OK(ended.CheckFinished({.output_tokens = 1, .events = 1}));
  EXPECT_THAT(ended.CheckTokens({.sequence = 1}), internal);
  EXPECT_THAT(ended.CheckFinished({.output_tokens = 1, .events = 1}), internal);
}

}  // namespace
}  // namespace baton::router::dispatch
