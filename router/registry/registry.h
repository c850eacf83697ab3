// Which workers there are: membership, incarnations, heartbeats, load, and this
// router's own requests on them.
//
// State of a worker as the router judges it (registry.cc, Judge):
//   what it reports              while heartbeats arrive
//   LOST                         kMissedHeartbeats intervals without one; back
//                                to what it reports with the next one
//   replaced                     the same name registers with another
//                                incarnation: reports of the old one are
//                                NOT_FOUND, its requests end by their legs
//   forgotten                    kForgetAfter after it was lost
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "router/registry/worker.h"

namespace baton::router::registry {

inline constexpr int32_t kMissedHeartbeats = 3;
inline constexpr absl::Duration kForgetAfter = absl::Minutes(5);
inline constexpr int32_t kMaxWorkers = 1024;

struct RegistryOptions {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Raw digest that workers must have; empty: the first worker fixes it.
  std::string model_digest;
};

// What one request adds to a worker until it ends.
struct InFlight {
  HandoffId handoff;
  WorkerRole role = WorkerRole::kPrefill;
  int32_t prompt_tokens = 0;
  int32_t samples = 0;
  int64_t blocks = 0;
};

// Thread-safe; every call is short.
class Registry final {
 public:
  Registry(const Clock* clock, RegistryOptions options)
      : clock_(clock),
        options_(std::move(options)),
        model_digest_(options_.model_digest) {}

  // Runs after each change that may have freed capacity or added a worker, on
  // the thread that made it, without the lock. Set before use.
  void set_on_capacity(std::function<void()> callback) {
    on_capacity_ = std::move(callback);
  }

  // INVALID_ARGUMENT: incomplete (names the field). FAILED_PRECONDITION
  // kMismatch: another model than this router serves, or another StateFormat
  // than a worker that is not lost.
  // RESOURCE_EXHAUSTED: kMaxWorkers.
  absl::Status Register(const WorkerIdentity& worker);
  // NOT_FOUND: register again (unknown name or incarnation). A report that is
  // not newer than the last is ignored.
  absl::Status Heartbeat(absl::string_view name, Incarnation incarnation,
                         const LoadReport& load);
  // Judges heartbeat ages; call a few times per interval.
  void Sweep();

  // A call to the worker failed: it is avoided until its next heartbeat.
  void ReportFailure(const WorkerRef& worker);
  // It refused for lack of capacity: avoided until its next report or until a
  // request of ours on it ends.
  void ReportRefusal(const WorkerRef& worker);
  void AddInFlight(const WorkerRef& worker, const InFlight& request);
  void RemoveInFlight(const WorkerRef& worker, HandoffId handoff,
                      WorkerRole role);

  // Immutable; rebuilt when something changed.
  std::shared_ptr<const Snapshot> snapshot() const;
  // Raw; empty until known.
  std::string model_digest() const;
  // Of the workers that are not lost; they share it. Empty without any.
  std::string state_format() const;
  // True when some prefill and some decode worker serve.
  bool CanServe() const;
  absl::Duration heartbeat_interval() const {
    return options_.heartbeat_interval;
  }
  // Workers refused for another model or StateFormat.
  int64_t mismatches() const;

 private:
  struct Entry {
    std::shared_ptr<const WorkerIdentity> identity;
    LoadReport load;
    absl::Time last_heartbeat;
    bool lost = false;
    bool refused = false;
    bool suspect = false;
    struct Request {
      InFlight in_flight;
      bool reported = false;  // the worker's load counts it
    };
    std::map<std::pair<HandoffId, WorkerRole>, Request> requests;
  };

  Entry* Find(const WorkerRef& worker) BATON_REQUIRES(mu_);
  absl::Status CheckFits(const WorkerIdentity& worker) BATON_REQUIRES(mu_);
  void CapacityChanged();

  const Clock* const clock_;
  const RegistryOptions options_;
  std::function<void()> on_capacity_;

  mutable Mutex mu_;
  std::map<std::string, Entry, std::less<>> workers_ BATON_GUARDED_BY(mu_);
  std::string model_digest_ BATON_GUARDED_BY(mu_);
  int64_t mismatches_ BATON_GUARDED_BY(mu_) = 0;
  // Null when something changed since it was built.
  mutable std::shared_ptr<const Snapshot> snapshot_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::router::registry
