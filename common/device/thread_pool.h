// Fixed threads that run the ranges of one operation after another; the CPU
// stand-in for a device's parallelism.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "kernels/include/parallel.h"

namespace baton::device {

// `num_threads` threads in all: the caller of For is one of them, and with 1
// everything runs inline. Chunks are handed out in ascending order to whichever
// thread is free. A thread without work spins for about 20 us, which covers the
// gap between two operations of a step, then sleeps. For allocates nothing.
//
// One thread at a time may call For (the step loop owns the pool). The
// destructor joins; no For may be running then.
//
// How a chunk is claimed: ticket_ holds (job number, chunks not yet claimed).
// A claim is a compare-and-swap that takes the last digit down by one, so it
// succeeds only while the job is live; the job's fields are read after it and
// cannot change before the claimed chunk is reported done. Hence For never
// waits for a thread that slept through the whole job.
class ThreadPool final : public kernels::Parallel {
 public:
  // Threads are named "<name>-<i>". num_threads < 1 is taken as 1.
  explicit ThreadPool(int32_t num_threads, absl::string_view name = "compute");
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const override { return num_threads_; }
  void For(int64_t n, kernels::RangeFunction f) override;

 private:
  struct Job {
    const kernels::RangeFunction* function = nullptr;
    int64_t n = 0;
    int64_t num_chunks = 0;
  };

  void WorkerLoop();
  // Claims and runs chunks until none is left.
  void RunChunks();
  // Returns when ticket_ has unclaimed chunks, or on stop (false).
  bool WaitForWork();

  const int32_t num_threads_;
  Job job_;  // written by For while no chunk is unclaimed or running
  // Job number in the high half, unclaimed chunks in the low. Release on
  // publication, acquire on claim; seq_cst against sleepers_.
  std::atomic<uint64_t> ticket_{0};
  // Chunks not yet done; the release of each decrement publishes its writes.
  std::atomic<int64_t> pending_{0};
  std::atomic<bool> stop_{false};
  // Flags of the sleeping sides: set under mu_ before the last look at the
  // condition (Dekker pattern, seq_cst), so a signal is never missed.
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};

  Mutex mu_;
  CondVar work_;
  CondVar done_;
  std::vector<Thread> threads_;
};

}  // namespace baton::device
