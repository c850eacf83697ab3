#include "router/dispatch/admission_queue.h"

#include <algorithm>

namespace baton::router::dispatch {

bool AdmissionQueue::TryArrive() {
  MutexLock lock(&mu_);
  if (arrived_ >= limits_.max_running + limits_.max_waiting) return false;
  ++arrived_;
  return true;
}

void AdmissionQueue::Enter(const std::shared_ptr<Entry>& entry) {
  {
    MutexLock lock(&mu_);
    // A newcomer with nobody before it probes at once: the refusal that made
    // the queue congested may have been of a much larger request.
    if (waiting_.empty() && probe_ == nullptr) may_probe_ = true;
    waiting_.push_back(entry);
  }
  Pump();
}

void AdmissionQueue::Requeue(const std::shared_ptr<Entry>& entry) {
  {
    MutexLock lock(&mu_);
    --running_;
    waiting_.push_front(entry);
    congested_ = true;
    may_probe_ = false;
    if (probe_ == entry) probe_ = nullptr;
  }
}

void AdmissionQueue::Settled(const std::shared_ptr<Entry>& entry) {
  {
    MutexLock lock(&mu_);
    if (!congested_ || probe_ != entry) return;
    probe_ = nullptr;
    may_probe_ = true;
    if (waiting_.empty()) congested_ = false;
  }
  Pump();
}

void AdmissionQueue::CapacityFreed() {
  {
    MutexLock lock(&mu_);
    may_probe_ = true;
    if (waiting_.empty() && probe_ == nullptr) congested_ = false;
  }
  Pump();
}

void AdmissionQueue::Leave(const std::shared_ptr<Entry>& entry) {
  {
    MutexLock lock(&mu_);
    --arrived_;
    if (entry != nullptr) {
      const auto it = std::find(waiting_.begin(), waiting_.end(), entry);
      if (it != waiting_.end()) {
        waiting_.erase(it);
      } else {
        --running_;
      }
      if (probe_ == entry) {
        probe_ = nullptr;
        may_probe_ = true;
      }
    }
  }
  Pump();
}

std::shared_ptr<AdmissionQueue::Entry> AdmissionQueue::TakeNext() {
  if (waiting_.empty() || running_ >= limits_.max_running) return nullptr;
  if (congested_ && (probe_ != nullptr || !may_probe_)) return nullptr;
  std::shared_ptr<Entry> next = waiting_.front();
  waiting_.pop_front();
  ++running_;
  if (congested_) {
    probe_ = next;
    may_probe_ = false;
  }
  return next;
}

void AdmissionQueue::Pump() {
  for (;;) {
    std::shared_ptr<Entry> next;
    {
      MutexLock lock(&mu_);
      next = TakeNext();
    }
    if (next == nullptr) return;
    next->granted();
  }
}

int32_t AdmissionQueue::running() const {
  MutexLock lock(&mu_);
  return running_;
}

int32_t AdmissionQueue::waiting() const {
  MutexLock lock(&mu_);
  return static_cast<int32_t>(waiting_.size());
}

}  // namespace baton::router::dispatch
