// Deadlines of many requests on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace baton::router::dispatch {

// Thread-safe. Callbacks run on the timer thread (or in RunDue) without a lock,
// must not block, and may run a moment after Cancel returned: the owner ignores
// a callback it no longer expects.
class TimerQueue final {
 public:
  // Opaque; {} means none.
  using TimerId = std::pair<absl::Time, int64_t>;

  explicit TimerQueue(const Clock* clock) : clock_(clock) {}
  ~TimerQueue() { Stop(); }
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // Starts the thread. Tests with a fake clock call RunDue instead.
  void StartThread();
  // Joins the thread; timers that have not fired are dropped.
  void Stop();

  TimerId Schedule(absl::Time when, std::function<void()> callback);
  void Cancel(const TimerId& id);
  // Fires everything that is due by the clock; returns how many.
  int32_t RunDue();

 private:
  void Loop();

  const Clock* const clock_;
  Mutex mu_;
  CondVar changed_;
  std::map<TimerId, std::function<void()>> timers_ BATON_GUARDED_BY(mu_);
  int64_t next_id_ BATON_GUARDED_BY(mu_) = 1;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace baton::router::dispatch
