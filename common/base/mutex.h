// Annotated mutex over std::mutex. The prebuilt absl::Mutex is invisible to
// ThreadSanitizer here, and clang's -Wthread-safety needs the annotations.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define BATON_TSA(x) __attribute__((x))
#else
#define BATON_TSA(x)
#endif
#define BATON_CAPABILITY(x) BATON_TSA(capability(x))
#define BATON_SCOPED_CAPABILITY BATON_TSA(scoped_lockable)
#define BATON_GUARDED_BY(x) BATON_TSA(guarded_by(x))
#define BATON_REQUIRES(...) BATON_TSA(requires_capability(__VA_ARGS__))
#define BATON_EXCLUDES(...) BATON_TSA(locks_excluded(__VA_ARGS__))
#define BATON_ACQUIRE(...) BATON_TSA(acquire_capability(__VA_ARGS__))
#define BATON_RELEASE(...) BATON_TSA(release_capability(__VA_ARGS__))
#define BATON_NO_TSA BATON_TSA(no_thread_safety_analysis)

namespace baton {

class BATON_CAPABILITY("mutex") Mutex final {
 public:
  void Lock() BATON_ACQUIRE() { mu_.lock(); }
  void Unlock() BATON_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class BATON_SCOPED_CAPABILITY MutexLock final {
 public:
  explicit MutexLock(Mutex* mu) BATON_ACQUIRE(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() BATON_RELEASE() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Condition variable for Mutex. Waits may wake spuriously: loop on the
// condition. Every wait that depends on another party uses WaitFor.
class CondVar final {
 public:
  void Wait(Mutex* mu) BATON_REQUIRES(mu) BATON_NO_TSA {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed without a signal.
  bool WaitFor(Mutex* mu, absl::Duration timeout)
      BATON_REQUIRES(mu) BATON_NO_TSA {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const auto result = cv_.wait_for(lock, absl::ToChronoMicroseconds(timeout));
    lock.release();
    return result == std::cv_status::no_timeout;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace baton
