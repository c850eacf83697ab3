// A clock that moves only when told to. Thread-safe.
#pragma once

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton::testing {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mu_);
    return now_;
  }
  void Advance(absl::Duration d) {
    MutexLock lock(&mu_);
    now_ += d;
  }

 private:
  mutable Mutex mu_;
  absl::Time now_ BATON_GUARDED_BY(mu_) = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace baton::testing
