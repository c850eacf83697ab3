#include "common/worker/step_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "common/testing/fake_clock.h"
#include "common/testing/sync_point.h"
#include "common/worker/health_monitor.h"

namespace baton::worker {
namespace {

// Something to wait for with a limit; the loop's thread sets it.
class Flag final {
 public:
  void Set() {
    MutexLock lock(&mu_);
    set_ = true;
    changed_.SignalAll();
  }
  bool Wait() {
    MutexLock lock(&mu_);
    while (!set_) {
      if (!changed_.WaitFor(&mu_, absl::Seconds(20))) return set_;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ BATON_GUARDED_BY(mu_) = false;
};

bool Nothing() { return false; }

TEST(StepLoopTest, RunsPostedClosuresInOrderOnItsOwnThread) {
  StepLoop loop({.iterate = Nothing});
  std::vector<int> order;
  std::thread::id thread;
  Flag done;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(loop.Post([&order, i] { order.push_back(i); }));
  }
  loop.Start();
  ASSERT_TRUE(loop.Post([&] {
    thread = std::this_thread::get_id();
    done.Set();
  }));
  ASSERT_TRUE(done.Wait());
  loop.Stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(StepLoopTest, RefusesWorkWhenTheMailboxIsFullButNeverNotices) {
  StepLoop loop({.iterate = Nothing, .mailbox_capacity = 2});
  EXPECT_TRUE(loop.Post([] {}));
  EXPECT_TRUE(loop.Post([] {}));
  EXPECT_FALSE(loop.Post([] {}));
  EXPECT_TRUE(loop.PostNotice([] {}));
}

TEST(StepLoopTest, RunsWhatWasPostedAndThenOnStopBeforeItEnds) {
  std::vector<int> order;
  StepLoop loop({.iterate = Nothing, .on_stop = [&] { order.push_back(9); }});
  loop.Start();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(loop.Post([&order, i] { order.push_back(i); }));
  }
  loop.Stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 9}));
  EXPECT_FALSE(loop.Post([] {}));
  EXPECT_FALSE(loop.PostNotice([] {}));
  EXPECT_EQ(loop.health().state, LoopState::kStopped);
}

TEST(StepLoopTest, StopsWithoutHavingStarted) {
  StepLoop loop({.iterate = Nothing});
  loop.Stop();
  EXPECT_EQ(loop.health().state, LoopState::kStopped);
  EXPECT_FALSE(loop.IsStalled(absl::InfiniteFuture()));
}

TEST(StepLoopTest, ReleasesClosuresAfterTheirTurn) {
  StepLoop loop({.iterate = Nothing});
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> weak = held;
  Flag done;
  loop.Start();
  ASSERT_TRUE(loop.Post([held = std::move(held)] {}));
  ASSERT_TRUE(loop.Post([&] { done.Set(); }));
  ASSERT_TRUE(done.Wait());
  EXPECT_TRUE(weak.expired());
}

TEST(StepLoopTest, IteratesAgainAtOnceWhileThereIsWork) {
  std::atomic<int> turns{0};
  Flag done;
  // An idle wait of an hour: only work keeps it going.
  StepLoop loop({.iterate =
                     [&] {
                       if (++turns == 100) done.Set();
                       return turns < 100;
                     },
                 .idle_wait = absl::Hours(1)});
  loop.Start();
  EXPECT_TRUE(done.Wait());
}

TEST(StepLoopTest, WakeEndsAnIdleWait) {
  std::atomic<int> turns{0};
  Flag first;
  Flag second;
  StepLoop loop({.iterate =
                     [&] {
                       ++turns;
                       if (turns == 1) first.Set();
                       if (turns == 2) second.Set();
                       return false;
                     },
                 .idle_wait = absl::Hours(1)});
  loop.Start();
  ASSERT_TRUE(first.Wait());
  loop.Wake();
  EXPECT_TRUE(second.Wait());
}

TEST(StepLoopTest, TicksWithoutWork) {
  StepLoop loop({.iterate = Nothing, .idle_wait = absl::Milliseconds(1)});
  loop.Start();
  Flag done;
  ASSERT_TRUE(loop.Post([&] { done.Set(); }));
  ASSERT_TRUE(done.Wait());
  const int64_t tick = loop.health().tick;
  // Each closure takes a turn, and a turn makes a tick.
  Flag again;
  ASSERT_TRUE(loop.Post([&] { again.Set(); }));
  ASSERT_TRUE(again.Wait());
  loop.Stop();
  EXPECT_GT(loop.health().tick, tick);
}

TEST(StepLoopTest, AuditsOncePerInterval) {
  testing::FakeClock clock;
  std::atomic<int> audits{0};
  StepLoop loop(
      {.clock = &clock, .iterate = Nothing, .audit = [&] { ++audits; }});
  loop.Start();
  // A posted closure has been followed by a whole turn once a second one runs.
  const auto turn = [&] {
    for (int i = 0; i < 2; ++i) {
      Flag done;
      ASSERT_TRUE(loop.Post([&] { done.Set(); }));
      ASSERT_TRUE(done.Wait());
    }
  };
  turn();
  EXPECT_EQ(audits, 0);
  clock.Advance(absl::Milliseconds(999));
  turn();
  EXPECT_EQ(audits, 0);
  clock.Advance(absl::Milliseconds(1));
  turn();
  turn();
  EXPECT_EQ(audits, 1);
  clock.Advance(absl::Seconds(1));
  turn();
  EXPECT_EQ(audits, 2);
}

TEST(StepLoopTest, IsStalledOnlyWhenATickIsLate) {
  testing::FakeClock clock;
  testing::SyncPoint stuck("worker.step_loop");
  StepLoop loop({.clock = &clock, .iterate = Nothing});
  EXPECT_FALSE(loop.IsStalled(clock.Now() + absl::Hours(1)));  // not started
  loop.Start();
  ASSERT_TRUE(stuck.WaitUntilReached());
  EXPECT_TRUE(IsServing(loop, clock.Now()));
  clock.Advance(absl::Seconds(2));
  EXPECT_FALSE(loop.IsStalled(clock.Now()));
  clock.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(loop.IsStalled(clock.Now()));
  EXPECT_FALSE(IsServing(loop, clock.Now()));
  EXPECT_EQ(ReportedStateOf(loop, clock.Now()), ReportedState::kStalled);
  stuck.Release();
  for (int i = 0; i < 2; ++i) {
    Flag done;
    ASSERT_TRUE(loop.Post([&] { done.Set(); }));
    ASSERT_TRUE(done.Wait());
  }
  EXPECT_FALSE(loop.IsStalled(clock.Now()));
  EXPECT_TRUE(IsServing(loop, clock.Now()));
}

TEST(HealthMonitorTest, FollowsLoadingServingDrainingAndStopped) {
  std::vector<bool> seen;
  StepLoop loop({.iterate = Nothing});
  {
    // An interval of an hour: only Check looks.
    HealthMonitor monitor({.loop = &loop,
                           .on_change = [&](bool s) { seen.push_back(s); },
                           .interval = absl::Hours(1)});
    EXPECT_EQ(seen, (std::vector<bool>{false}));
    loop.Start();
    monitor.Check();
    monitor.Check();
    EXPECT_EQ(seen, (std::vector<bool>{false, true}));
    loop.SetState(LoopState::kDraining);
    EXPECT_EQ(ReportedStateOf(loop, Clock::Real()->Now()),
              ReportedState::kDraining);
    monitor.Check();
    EXPECT_EQ(seen, (std::vector<bool>{false, true, false}));
  }
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false, false}));
}

TEST(HealthMonitorTest, TurnsNotServingWithinThreeSecondsOfAStuckLoop) {
  testing::SyncPoint stuck("worker.step_loop");
  StepLoop loop({.iterate = Nothing});
  loop.Start();
  ASSERT_TRUE(stuck.WaitUntilReached());
  const absl::Time last_tick = loop.health().last_tick;
  Flag not_serving;
  absl::Time when;
  HealthMonitor monitor({.loop = &loop, .on_change = [&](bool serving) {
                           if (!serving) {
                             when = Clock::Real()->Now();
                             not_serving.Set();
                           }
                         }});
  ASSERT_TRUE(not_serving.Wait());
  EXPECT_LE(when - last_tick, absl::Seconds(3));
  stuck.Release();
}

}  // namespace
}  // namespace baton::worker
