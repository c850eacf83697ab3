#include "router/dispatch/timer_queue.h"

#include <algorithm>

namespace baton::router::dispatch {

void TimerQueue::StartThread() {
  thread_ = Thread("router-timer", [this] { Loop(); });
}

void TimerQueue::Stop() {
  std::map<TimerId, std::function<void()>> dropped;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(timers_);
    changed_.SignalAll();
  }
  thread_.Join();
}

TimerQueue::TimerId TimerQueue::Schedule(absl::Time when,
                                         std::function<void()> callback) {
  MutexLock lock(&mu_);
  const TimerId id{when, next_id_++};
  if (stopping_) return id;
  timers_.emplace(id, std::move(callback));
  if (timers_.begin()->first == id) changed_.Signal();
  return id;
}

void TimerQueue::Cancel(const TimerId& id) {
  std::function<void()> dropped;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  const auto it = timers_.find(id);
  if (it == timers_.end()) return;
  dropped = std::move(it->second);
  timers_.erase(it);
}

int32_t TimerQueue::RunDue() {
  int32_t fired = 0;
  for (;;) {
    std::function<void()> callback;
    {
      MutexLock lock(&mu_);
      if (timers_.empty() || timers_.begin()->first.first > clock_->Now()) {
        return fired;
      }
      callback = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    callback();
    ++fired;
  }
}

void TimerQueue::Loop() {
  for (;;) {
    RunDue();
    MutexLock lock(&mu_);
    if (stopping_) return;
    absl::Duration wait = absl::Seconds(1);
    if (!timers_.empty()) {
      wait = std::min(wait, timers_.begin()->first.first - clock_->Now());
    }
    if (wait > absl::ZeroDuration()) changed_.WaitFor(&mu_, wait);
  }
}

}  // namespace baton::router::dispatch
