// Who may run: a bound on running requests and a bounded FIFO of waiting ones.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/mutex.h"

namespace baton::router::dispatch {

// Thread-safe. One entry per request:
//
//   outside --TryArrive--> arrived --Enter--> running   (a permit is free)
//                                        `--> waiting
//   waiting --(permit and its turn)--> running          (`granted` runs)
//   running --Requeue--> waiting at the front           (workers had no room)
//   any     --Leave--> outside
//
// While workers refuse, at most one request probes them at a time, woken by
// CapacityFreed; Settled says that the probe found room and the next may try.
// So a full cluster costs one refused call per load report, not one per waiting
// request.
class AdmissionQueue final {
 public:
  struct Limits {
    int32_t max_running = 256;
    int32_t max_waiting = 1024;
  };
  // Identity of an entry and how it is woken. Runs without the lock.
  struct Entry {
    std::function<void()> granted;
  };

  explicit AdmissionQueue(Limits limits) : limits_(limits) {}

  // False: running and waiting places are all taken.
  bool TryArrive();
  // Runs `granted` now or when it is the entry's turn.
  void Enter(const std::shared_ptr<Entry>& entry);
  // Gives the permit back and waits at the front for CapacityFreed.
  void Requeue(const std::shared_ptr<Entry>& entry);
  // The running entry holds what it needs on the workers. Idempotent.
  void Settled(const std::shared_ptr<Entry>& entry);
  // Workers may have room again.
  void CapacityFreed();
  // Ends an arrival, whether it entered (`entry`) or not (null).
  void Leave(const std::shared_ptr<Entry>& entry);

  int32_t running() const;
  int32_t waiting() const;

 private:
  // Pops the next entry that may run now, or null.
  std::shared_ptr<Entry> TakeNext() BATON_REQUIRES(mu_);
  void Pump();

  const Limits limits_;
  mutable Mutex mu_;
  int32_t arrived_ BATON_GUARDED_BY(mu_) = 0;
  int32_t running_ BATON_GUARDED_BY(mu_) = 0;
  std::deque<std::shared_ptr<Entry>> waiting_ BATON_GUARDED_BY(mu_);
  // Workers refused lately: only `probe_` may run next, after CapacityFreed.
  bool congested_ BATON_GUARDED_BY(mu_) = false;
  bool may_probe_ BATON_GUARDED_BY(mu_) = false;
  std::shared_ptr<Entry> probe_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::router::dispatch
