#include "common/device/thread_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::device {

namespace {

// About 20 us: a pause takes 15 to 45 ns on current x86.
constexpr int kSpins = 700;
// Chunks per thread: more even out unequal work, fewer cost less claiming and
// leave an operation longer runs of consecutive rows.
constexpr int64_t kChunksPerThread = 4;
constexpr uint64_t kUnclaimedMask = 0xffffffff;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True as soon as `ready` is; false after the spin time.
template <typename F>
bool Spin(F ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    Pause();
  }
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads, absl::string_view name)
    : num_threads_(std::max(1, num_threads)) {
  for (int32_t i = 1; i < num_threads_; ++i) {
    threads_.emplace_back(absl::StrCat(name, "-", i), [this] { WorkerLoop(); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    MutexLock lock(&mu_);
    work_.SignalAll();
  }
  for (Thread& thread : threads_) thread.Join();
}

void ThreadPool::For(int64_t n, kernels::RangeFunction f) {
  CHECK_GE(n, 0);
  if (n == 0) return;
  if (num_threads_ == 1 || n == 1) {
    f(0, n);
    return;
  }
  CHECK(pending_.load(std::memory_order_relaxed) == 0)
      << "For is neither re-entrant nor shared between threads";
  job_ = {.function = &f,
          .n = n,
          .num_chunks = std::min(n, num_threads_ * kChunksPerThread)};
  pending_.store(job_.num_chunks, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(number << 32 | static_cast<uint64_t>(job_.num_chunks));
  if (sleepers_.load() > 0) {
    MutexLock lock(&mu_);
    work_.SignalAll();
  }
  RunChunks();
  const auto done = [this] {
    return pending_.load(std::memory_order_acquire) == 0;
  };
  if (Spin(done)) return;
  MutexLock lock(&mu_);
  caller_sleeps_.store(true);
  while (pending_.load() != 0) done_.Wait(&mu_);
  caller_sleeps_.store(false);
}

void ThreadPool::RunChunks() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket & kUnclaimedMask) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1,
                                       std::memory_order_acq_rel)) {
      continue;
    }
    const int64_t chunk =
        job_.num_chunks - static_cast<int64_t>(ticket & kUnclaimedMask);
    (*job_.function)(job_.n * chunk / job_.num_chunks,
                     job_.n * (chunk + 1) / job_.num_chunks);
    if (pending_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
      MutexLock lock(&mu_);
      done_.Signal();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::WaitForWork() {
  const auto ready = [this] {
    return (ticket_.load() & kUnclaimedMask) != 0 || stop_.load();
  };
  if (!Spin(ready)) {
    MutexLock lock(&mu_);
    sleepers_.fetch_add(1);
    while (!ready()) work_.Wait(&mu_);
    sleepers_.fetch_sub(1);
  }
  return !stop_.load();
}

void ThreadPool::WorkerLoop() {
  while (WaitForWork()) RunChunks();
}

}  // namespace baton::device
