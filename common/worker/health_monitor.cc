#include "common/worker/health_monitor.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::worker {

bool IsServing(const StepLoop& loop, absl::Time now) {
  return loop.health().state == LoopState::kServing && !loop.IsStalled(now);
}

ReportedState ReportedStateOf(const StepLoop& loop, absl::Time now) {
  if (loop.IsStalled(now)) {
    return ReportedState::kStalled;
  }
  return loop.health().state == LoopState::kServing ? ReportedState::kServing
                                                    : ReportedState::kDraining;
}

HealthMonitor::HealthMonitor(HealthMonitorOptions options)
    : options_(std::move(options)) {
  CHECK(options_.loop != nullptr && options_.on_change != nullptr);
  Check();
  thread_ = Thread("health", [this] {
    for (;;) {
      {
        MutexLock lock(&mu_);
        if (!stopping_) {
          wake_.WaitFor(&mu_, options_.interval);
        }
        if (stopping_) {
          return;
        }
      }
      Check();
    }
  });
}

HealthMonitor::~HealthMonitor() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.Signal();
  }
  thread_.Join();
  options_.on_change(false);
}

void HealthMonitor::Check() {
  const absl::Time now = options_.clock->Now();
  const bool serving = IsServing(*options_.loop, now);
  // Held over the callback, so that two looks cannot report out of order.
  MutexLock lock(&mu_);
  if (stopping_ || (known_ && serving == serving_)) {
    return;
  }
  known_ = true;
  serving_ = serving;
  const LoopHealth health = options_.loop->health();
  Log(options_.loop->IsStalled(now) ? LogLevel::kError : LogLevel::kInfo,
      "health_changed",
      {{"serving", serving},
       {"state", LoopStateName(health.state)},
       {"stalled", options_.loop->IsStalled(now)},
       {"tick", health.tick}});
  options_.on_change(serving);
}

}  // namespace baton::worker
