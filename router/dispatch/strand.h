// Runs the events of one owner one after another without a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <memory>
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

  void Post(std::function<void()> event) {
    // The last event may destroy the owner, and this with it.
    const std::shared_ptr<Queue> queue = queue_;
    {
      MutexLock lock(&queue->mu);
      queue->events.push_back(std::move(event));
      if (queue->draining) return;
      queue->draining = true;
    }
    while (RunNext(queue.get())) {
    }
  }

 private:
  struct Queue {
    Mutex mu;
    std::deque<std::function<void()>> events BATON_GUARDED_BY(mu);
    bool draining BATON_GUARDED_BY(mu) = false;
  };

  static bool RunNext(Queue* queue) {
    std::function<void()> next;
    {
      MutexLock lock(&queue->mu);
      if (queue->events.empty()) {
        queue->draining = false;
        return false;
      }
      next = std::move(queue->events.front());
      queue->events.pop_front();
    }
    next();
    return true;
  }

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace baton::router::dispatch
