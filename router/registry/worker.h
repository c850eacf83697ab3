// A worker as the router sees it, apart from the wire format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace baton::router::registry {

enum class WorkerRole : uint8_t { kPrefill, kDecode };

enum class WorkerState : uint8_t {
  kLoading,
  kServing,
  kDraining,
  kStalled,
  kLost,
};

// Identity and capacity; fixed for one incarnation.
struct WorkerIdentity {
  std::string name;
  bool prefill = false;
  bool decode = false;
  Incarnation incarnation = 0;
  std::vector<std::string> endpoints;  // one per rank, rank 0 first
  std::string model_digest;            // raw bytes
  std::string state_format_hash;       // raw bytes
  std::string state_format;
  std::string compute_policy;
  std::string node;
  std::vector<std::string> bus_ids;
  int32_t ranks = 1;
  int32_t blocks = 0;
  int32_t slots = 0;
  int64_t max_positions = 0;
  int64_t max_backlog_tokens = 0;

  bool Has(WorkerRole role) const {
    return role == WorkerRole::kPrefill ? prefill : decode;
  }
};

// Numbers of one moment, from the worker.
struct LoadReport {
  int64_t sequence = -1;  // -1: none yet
  int64_t tick = 0;
  WorkerState state = WorkerState::kLoading;
  int32_t free_blocks = 0;
  int32_t free_slots = 0;
  int32_t sequences = 0;
  int64_t backlog_tokens = 0;
  double prefill_tokens_per_second = 0.0;
  std::vector<HandoffId> admitted_since_report;
};

// Where a leg goes. A new incarnation is another worker.
struct WorkerRef {
  std::string name;
  Incarnation incarnation = 0;
  std::string endpoint;  // rank 0

  bool operator==(const WorkerRef&) const = default;
};

// One worker in a snapshot: what policies may look at.
struct WorkerView {
  std::shared_ptr<const WorkerIdentity> identity;
  LoadReport load;
  WorkerState state = WorkerState::kLoading;  // as the router judges it
  absl::Time last_heartbeat;                  // by the router's Clock
  int32_t in_flight = 0;  // requests of this router on it, either role
  // This router's requests that `load` does not count yet.
  int64_t unreported_prompt_tokens = 0;
  int32_t unreported_samples = 0;
  int64_t unreported_blocks = 0;
  // It refused since its last report: others first.
  bool refused = false;
  // A call to it failed since its last heartbeat: others first.
  bool suspect = false;

  WorkerRef ref() const {
    return {identity->name, identity->incarnation, identity->endpoints.front()};
  }
};

// Immutable once published; sorted by name.
using Snapshot = std::vector<WorkerView>;

}  // namespace baton::router::registry
