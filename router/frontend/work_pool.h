// A few threads for work that would hold gRPC's own threads too long: parsing,
// chat encoding, tokenising.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace baton::router::frontend {

// Thread-safe. FIFO; its length is bounded by the admission queue, which every
// request passes first.
class WorkPool final {
 public:
  explicit WorkPool(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back(absl::StrCat("router-encode-", i),
                            [this] { Loop(); });
    }
  }
  // Finishes what was posted.
  ~WorkPool() {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  void Post(std::function<void()> work) {
    MutexLock lock(&mu_);
    work_.push_back(std::move(work));
    changed_.Signal();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> next;
      {
        MutexLock lock(&mu_);
        while (work_.empty() && !stopping_) changed_.Wait(&mu_);
        if (work_.empty()) return;
        next = std::move(work_.front());
        work_.pop_front();
      }
      next();
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ BATON_GUARDED_BY(mu_);
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;  // joined first: declared last
};

}  // namespace baton::router::frontend
