// Keeps a worker known to every router in --routers: Register, then heartbeats
// with load reports (design.md 8).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/random.h"

namespace baton::worker {

enum class Role : uint8_t { kPrefill, kDecode };

// As cluster.proto WorkerInfo.
struct WorkerDescription {
  std::string name;
  std::vector<Role> roles;
  Incarnation incarnation = 0;
  std::vector<std::string> endpoints;
  Sha256Digest model_digest{};
  Sha256Digest state_format_hash{};
  std::string state_format;
  std::string compute_policy;
  std::string node;
  int32_t blocks = 0;
  int32_t slots = 0;
  int64_t max_positions = 0;
  int64_t max_backlog_tokens = 0;  // prefill
};

enum class ReportedState : uint8_t { kServing, kDraining, kStalled };

// Numbers of one moment, as cluster.proto LoadReport.
struct WorkerLoad {
  int64_t tick = 0;
  ReportedState state = ReportedState::kServing;
  int32_t free_blocks = 0;
  int32_t free_slots = 0;
  int32_t sequences = 0;
  int64_t backlog_tokens = 0;
  double prefill_tokens_per_second = 0;
};

struct RegistrationOptions {
  std::vector<std::string> routers;  // cluster addresses; may be empty
  WorkerDescription worker;
  // Any thread; must not block for long.
  std::function<WorkerLoad()> load;
  Random* random = Random::System();  // jitter
  absl::Duration call_timeout = absl::Seconds(2);
  absl::Duration min_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);
};

// Thread-safe. One thread per router, so that one that is down or stuck delays
// nobody else's heartbeats. Each repeats: Register until accepted (back-off
// with jitter between min and max), then Heartbeat at the interval that the
// router asked for (bounded to 100 ms .. 5 s); NOT_FOUND or another router
// incarnation registers again at once; other errors count as the router being
// down.
class Registration final {
 public:
  // Starts the threads.
  explicit Registration(RegistrationOptions options);
  // Stops. Calls in flight are cancelled: returns in milliseconds.
  ~Registration();

  // A sequence of this hand-off was admitted: named once in the next report to
  // each router.
  void NoteAdmitted(HandoffId handoff);
  // Sends a report now rather than at the next interval (drain began, ...).
  void ReportSoon();
  void Stop();

  // Routers that know this worker at present.
  int32_t registered() const;

 private:
  class RouterLoop;
  const RegistrationOptions options_;
  std::vector<std::unique_ptr<RouterLoop>> loops_;
};

}  // namespace baton::worker
