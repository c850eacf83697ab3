// The step loop of a worker: the one thread that owns its sequences, block
// tables and sampler states (style.md B6). Everybody else talks to it by
// posting closures; health is judged by its ticks (design.md 8).
//
//   StepLoop loop({.iterate = [&] { return engine.Iterate(); },
//                  .audit = [&] { engine.Audit(); },
//                  .on_stop = [&] { engine.EndAll(); }});
//   loop.Start();
//   if (!loop.Post([&] { engine.Admit(...); })) { /* refuse the call */ }
//
// One turn: run what was posted, run Iterate, audit if a second has passed,
// publish a tick; without work wait up to `idle_wait` or until woken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace baton::worker {

// What a loop is doing, as its owner says. Whether it is stalled is judged from
// outside (IsStalled), because a stuck loop cannot say so.
enum class LoopState : uint8_t { kLoading, kServing, kDraining, kStopped };
absl::string_view LoopStateName(LoopState state);

// Snapshot of one moment.
struct LoopHealth {
  int64_t tick = 0;  // turns so far
  LoopState state = LoopState::kLoading;
  absl::Time last_tick;    // end of the latest turn (Start before the first)
  absl::Time expected_by;  // when the next tick is due
};

struct StepLoopOptions {
  std::string name = "step-loop";  // thread name, 15 characters
  Clock* clock = Clock::Real();
  // One turn of work; returns whether there was any.
  std::function<bool()> iterate;
  // Every `audit_interval`, between two turns. Optional.
  std::function<void()> audit;
  // The last thing that runs on the thread, after everything posted. Optional.
  std::function<void()> on_stop;
  absl::Duration idle_wait = absl::Milliseconds(20);
  absl::Duration audit_interval = absl::Seconds(1);
  // A turn that takes longer than this counts as stalled.
  absl::Duration tick_allowance = absl::Seconds(2);
  // Closures that may wait in the mailbox.
  size_t mailbox_capacity = 4096;
};

// Thread-safe. All callbacks run on the loop's thread, without a lock held.
class StepLoop final {
 public:
  explicit StepLoop(StepLoopOptions options);
  // Stops.
  ~StepLoop();
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Starts the thread with state kServing. Called once.
  void Start();

  // Runs `closure` on the loop's thread, in order of posting. False, and the
  // closure is dropped, when the loop has stopped or the mailbox is full: the
  // caller refuses what it wanted to bring. May be called before Start.
  bool Post(std::function<void()> closure);
  // For news about work that the loop already has (cancels, ends, events of
  // links): refused only after Stop, since losing one would leak. Bounded by
  // the amount of admitted work, so callers post a bounded number per sequence.
  bool PostNotice(std::function<void()> closure);
  // Ends an idle wait; cheap, from any thread.
  void Wake();

  // kDraining is set when a drain begins; Stop sets kStopped by itself.
  void SetState(LoopState state);

  LoopHealth health() const;
  // Whether no tick came by when it was due. Never true before Start or after
  // Stop.
  bool IsStalled(absl::Time now) const;

  // No closure is accepted from here on; those already posted and on_stop run,
  // then the thread is joined. Idempotent; not from the loop's own thread.
  void Stop();

 private:
  bool Enqueue(std::function<void()> closure, bool bounded);
  void Run();
  void RunMailbox();
  void Tick();

  const StepLoopOptions options_;

  mutable Mutex mu_;
  CondVar wake_;
  std::vector<std::function<void()>> mailbox_ BATON_GUARDED_BY(mu_);
  bool woken_ BATON_GUARDED_BY(mu_) = false;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  bool started_ BATON_GUARDED_BY(mu_) = false;
  LoopHealth health_ BATON_GUARDED_BY(mu_);

  absl::Time last_audit_;  // loop thread only
  Thread thread_;
};

}  // namespace baton::worker
