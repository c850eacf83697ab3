// Runs the events of one owner one after another without a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "common/base/mutex.h"

namespace baton::router::dispatch {

// Thread-safe. Whoever posts while nobody drains drains the queue itself, so an
// event may run on any thread, never two at once, always in order of posting.
// Posting from inside an event only queues it: callbacks that a library makes
// inline cannot re-enter the owner. No lock is held while an event runs.
//
// The queue is bounded by its users: each leg, timer and client stream has at
// most a handful of events outstanding.
class Strand final {
 public:
  Strand() = default;
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  void Post(std::function<void()> event) BATON_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      events_.push_back(std::move(event));
      if (draining_) return;
      draining_ = true;
    }
    for (;;) {
      std::function<void()> next;
      {
        MutexLock lock(&mu_);
        if (events_.empty()) {
          draining_ = false;
          return;
        }
        next = std::move(events_.front());
        events_.pop_front();
      }
      next();
    }
  }

 private:
  Mutex mu_;
  std::deque<std::function<void()>> events_ BATON_GUARDED_BY(mu_);
  bool draining_ BATON_GUARDED_BY(mu_) = false;
};

}  // namespace baton::router::dispatch
