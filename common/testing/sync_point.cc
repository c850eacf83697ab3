#include "common/testing/sync_point.h"

#include <memory>

#include "common/base/clock.h"

namespace baton::testing {

struct SyncPoint::State {
  Mutex mu;
  CondVar changed;
  bool reached BATON_GUARDED_BY(mu) = false;
  bool released BATON_GUARDED_BY(mu) = false;
};

SyncPoint::SyncPoint(absl::string_view name)
    : name_(name), state_(std::make_shared<State>()) {
  FaultRegistry::Global().Arm(name_, [state = state_](absl::string_view) {
    MutexLock lock(&state->mu);
    state->reached = true;
    state->changed.SignalAll();
    while (!state->released) state->changed.Wait(&state->mu);
    return false;
  });
}

SyncPoint::~SyncPoint() {
  Release();
  FaultRegistry::Global().Disarm(name_);
}

bool SyncPoint::WaitUntilReached(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  MutexLock lock(&state_->mu);
  while (!state_->reached) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    state_->changed.WaitFor(&state_->mu, left);
  }
  return true;
}

void SyncPoint::Release() {
  MutexLock lock(&state_->mu);
  state_->released = true;
  state_->changed.SignalAll();
}

}  // namespace baton::testing
