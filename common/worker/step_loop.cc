#include "common/worker/step_loop.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/fault_point.h"

namespace baton::worker {

absl::string_view LoopStateName(LoopState state) {
  switch (state) {
    case LoopState::kLoading:
      return "loading";
    case LoopState::kServing:
      return "serving";
    case LoopState::kDraining:
      return "draining";
    case LoopState::kStopped:
      return "stopped";
  }
  return "unknown";
}

StepLoop::StepLoop(StepLoopOptions options) : options_(std::move(options)) {
  CHECK(options_.iterate != nullptr);
  const absl::Time now = options_.clock->Now();
  MutexLock lock(&mu_);
  health_.last_tick = now;
  health_.expected_by = now + options_.tick_allowance;
}

StepLoop::~StepLoop() { Stop(); }

void StepLoop::Start() {
  const absl::Time now = options_.clock->Now();
  {
    MutexLock lock(&mu_);
    CHECK(!started_) << "StepLoop::Start called twice";
    if (stopping_) {
      return;
    }
    started_ = true;
    health_.state = LoopState::kServing;
    health_.last_tick = now;
    health_.expected_by = now + options_.tick_allowance;
  }
  last_audit_ = now;
  thread_ = Thread(options_.name, [this] { Run(); });
}

bool StepLoop::Post(std::function<void()> closure) {
  return Enqueue(std::move(closure), /*bounded=*/true);
}

bool StepLoop::PostNotice(std::function<void()> closure) {
  return Enqueue(std::move(closure), /*bounded=*/false);
}

bool StepLoop::Enqueue(std::function<void()> closure, bool bounded) {
  MutexLock lock(&mu_);
  if (stopping_ || (bounded && mailbox_.size() >= options_.mailbox_capacity)) {
    return false;
  }
  mailbox_.push_back(std::move(closure));
  woken_ = true;
  wake_.Signal();
  return true;
}

void StepLoop::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  wake_.Signal();
}

void StepLoop::SetState(LoopState state) {
  MutexLock lock(&mu_);
  if (!stopping_) {
    health_.state = state;
  }
}

LoopHealth StepLoop::health() const {
  MutexLock lock(&mu_);
  return health_;
}

bool StepLoop::IsStalled(absl::Time now) const {
  MutexLock lock(&mu_);
  return started_ && health_.state != LoopState::kStopped &&
         now > health_.expected_by;
}

void StepLoop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    woken_ = true;
    wake_.Signal();
  }
  thread_.Join();
  MutexLock lock(&mu_);
  health_.state = LoopState::kStopped;
}

void StepLoop::Run() {
  for (;;) {
    BATON_FAULT_POINT("worker.step_loop");
    RunMailbox();
    const bool worked = options_.iterate();
    Tick();
    MutexLock lock(&mu_);
    if (stopping_) {
      break;
    }
    if (!worked && !woken_ && mailbox_.empty()) {
      wake_.WaitFor(&mu_, options_.idle_wait);
    }
    woken_ = false;
  }
  RunMailbox();
  if (options_.on_stop != nullptr) {
    options_.on_stop();
  }
}

void StepLoop::RunMailbox() {
  std::vector<std::function<void()>> closures;
  {
    MutexLock lock(&mu_);
    closures.swap(mailbox_);
  }
  for (auto& closure : closures) {
    closure();
    // What a closure holds (a call, a prompt) must not outlive its turn.
    closure = nullptr;
  }
}

void StepLoop::Tick() {
  const absl::Time now = options_.clock->Now();
  if (options_.audit != nullptr &&
      now - last_audit_ >= options_.audit_interval) {
    last_audit_ = now;
    options_.audit();
  }
  MutexLock lock(&mu_);
  ++health_.tick;
  health_.last_tick = now;
  health_.expected_by = now + options_.tick_allowance;
}

}  // namespace baton::worker
