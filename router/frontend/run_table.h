// Requests that run at this router, by internal id: for Abort and for the end
// of the process.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "router/dispatch/run.h"

namespace baton::router::frontend {

// Thread-safe.
class RunTable final {
 public:
  void Add(const std::shared_ptr<dispatch::Run>& run) {
    MutexLock lock(&mu_);
    runs_[run->id()] = run;
  }
  void Remove(const RequestId& id) {
    MutexLock lock(&mu_);
    runs_.erase(id);
    if (runs_.empty()) empty_.SignalAll();
  }
  // Waits until nothing runs, at most `limit`.
  void WaitEmpty(absl::Duration limit) {
    constexpr int kPieces = 200;  // a wake-up may be spurious
    MutexLock lock(&mu_);
    for (int i = 0; i < kPieces && !runs_.empty(); ++i) {
      empty_.WaitFor(&mu_, limit / kPieces);
    }
  }
  // False: no such request.
  bool Cancel(const RequestId& id, const absl::Status& why) {
    std::shared_ptr<dispatch::Run> run;
    {
      MutexLock lock(&mu_);
      const auto it = runs_.find(id);
      if (it != runs_.end()) run = it->second.lock();
    }
    if (run == nullptr) return false;
    run->Cancel(why);
    return true;
  }
  void CancelAll(const absl::Status& why) {
    std::vector<std::shared_ptr<dispatch::Run>> runs;
    {
      MutexLock lock(&mu_);
      for (const auto& [id, weak] : runs_) {
        if (auto run = weak.lock()) runs.push_back(std::move(run));
      }
    }
    for (const auto& run : runs) run->Cancel(why);
  }
  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(runs_.size());
  }

 private:
  mutable Mutex mu_;
  CondVar empty_;
  std::map<RequestId, std::weak_ptr<dispatch::Run>> runs_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::router::frontend
