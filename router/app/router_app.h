// The router as one object: everything that main wires together, so that a test
// can run it in process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "router/dispatch/admission_queue.h"
#include "router/dispatch/run.h"
#include "router/frontend/validate.h"

namespace baton::router::app {

struct RouterOptions {
  std::string listen = "127.0.0.1:50051";   // public API
  std::string cluster = "127.0.0.1:50052";  // ClusterService
  std::string metrics = "127.0.0.1:9400";   // /metrics; empty: none
  std::string model_dir;
  // Hex; empty: the first worker fixes it.
  std::string model_digest;
  int max_message_bytes = rpc::kMaxMessageBytes;
  int encode_threads = 2;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Running requests may take this long to finish once Drain is called.
  absl::Duration drain_timeout = absl::Seconds(30);
  frontend::RequestLimits limits;
  dispatch::AdmissionQueue::Limits queue;
  dispatch::RunOptions run;
};

// Thread-safe after Start.
class RouterApp final {
 public:
  // Serves when it returns; health is NOT_SERVING until a prefill and a decode
  // worker serve. INVALID_ARGUMENT, NOT_FOUND: the model's files or an option;
  // UNAVAILABLE: an address cannot be bound. `clock` and `random` outlive it.
  static absl::StatusOr<std::unique_ptr<RouterApp>> Start(
      const RouterOptions& options, const Clock* clock, Random* random);
  // Drain without patience.
  ~RouterApp();

  // Real addresses (port 0 resolved).
  const std::string& listen_address() const;
  const std::string& cluster_address() const;
  std::string metrics_address() const;  // empty: not served

  // Health NOT_SERVING and no new requests at once; running ones have
  // `drain_timeout`, then end with UNAVAILABLE kDraining. Idempotent.
  void Drain(absl::Duration drain_timeout);

  // For tests and the log: requests that run or wait, calls to workers.
  int64_t running_requests() const;
  int64_t live_calls() const;
  std::string ExposeMetrics() const;
  // For the process-wide counter of bugs; lives as long as this.
  baton::metrics::MetricSet* metric_set();

 private:
  struct Parts;
  explicit RouterApp(std::unique_ptr<Parts> parts);
  void UpdateHealth();
  void ScheduleSweep();

  const std::unique_ptr<Parts> parts_;
};

}  // namespace baton::router::app
