// Turns the step loop's ticks into grpc.health.v1 answers: SERVING while the
// loop serves and ticks, NOT_SERVING while loading, draining, stopped or
// stalled.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/worker/registration.h"
#include "common/worker/step_loop.h"

namespace baton::worker {

// SERVING exactly in LoopState::kServing without a stall.
bool IsServing(const StepLoop& loop, absl::Time now);
// For load reports: stalled beats draining.
ReportedState ReportedStateOf(const StepLoop& loop, absl::Time now);

struct HealthMonitorOptions {
  const StepLoop* loop = nullptr;  // outlives the monitor
  Clock* clock = Clock::Real();
  // Called on every change and once at the start; must not block for long.
  std::function<void(bool serving)> on_change;
  // With the loop's allowance of 2 s: NOT_SERVING within 3 s of its last tick.
  absl::Duration interval = absl::Milliseconds(250);
};

// Owns one thread that looks at the loop at each interval.
class HealthMonitor final {
 public:
  explicit HealthMonitor(HealthMonitorOptions options);
  // Reports false a last time, then joins.
  ~HealthMonitor();

  // Looks now; the thread's own look, public so that state changes show at
  // once.
  void Check();

 private:
  const HealthMonitorOptions options_;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  bool known_ BATON_GUARDED_BY(mu_) = false;
  bool serving_ BATON_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace baton::worker
