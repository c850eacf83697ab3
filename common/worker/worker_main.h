// The wiring that both worker binaries share: server, loading, registration,
// health, metrics, signals, drain and the order of shutdown.
//
//   int main(int argc, char** argv) {
//     worker::WorkerOptions options;
//     ... parse flags ...
//     MyRole role(...);
//     return worker::RunWorker(options, &role);
//   }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/worker/registration.h"
#include "common/worker/step_loop.h"
#include "common/worker/worker_options.h"
#include "common/worker/worker_runtime.h"

namespace baton::worker {

// Handed to WorkerRole::Start; everything outlives the role's Stop.
struct WorkerContext {
  const WorkerOptions* options = nullptr;
  WorkerRuntime* runtime = nullptr;
  metrics::MetricSet* metrics = nullptr;
  Clock* clock = Clock::Real();
  Random* random = Random::System();
  Incarnation incarnation = 0;
  std::string advertise;  // host:port that others dial
  std::string bound;      // host:port that the server listens on
};

// What one role adds. Called by RunWorker's thread in the order below.
class WorkerRole {
 public:
  virtual ~WorkerRole() = default;
  virtual Role role() const = 0;
  // First of all: what services are made of. `runtime` and the addresses are
  // not known yet.
  virtual absl::Status Prepare(const WorkerContext&) {
    return absl::OkStatus();
  }
  // Before loading: the services exist and answer UNAVAILABLE until Start.
  virtual std::vector<grpc::Service*> Services() = 0;
  // After loading: builds everything and starts the step loop.
  virtual absl::Status Start(const WorkerContext& context) = 0;
  // Valid between Start and destruction.
  virtual StepLoop* loop() = 0;
  // Any thread: numbers for load reports; `tick` and `state` are filled in by
  // the caller.
  virtual WorkerLoad Load() const = 0;
  virtual int64_t max_backlog_tokens() const { return 0; }
  // Lets the role tell routers what it has admitted.
  virtual void SetRegistration(Registration* registration) = 0;
  // Take no new work; what runs goes on.
  virtual void BeginDrain() = 0;
  virtual bool Drained() const = 0;
  // The drain is over, complete or not: calls that still run end now, with a
  // status, before the server cancels them.
  virtual void EndDrain() {}
  // The server takes no calls any more: stops the loop and releases all.
  virtual void Stop() = 0;
};

// Runs until SIGTERM or SIGINT, then drains for up to --drain-timeout and stops
// (a second signal ends the drain at once). Returns the exit status: 0, or 1
// after a failed start, which is logged with its reason.
//
// Start: signals blocked, metrics server, gRPC server (NOT_SERVING), load,
// role->Start, registration, health SERVING. Stop, in reverse: drain (health
// NOT_SERVING, reports say draining), registration, server (calls end),
// role->Stop, runtime.
int RunWorker(WorkerOptions options, WorkerRole* role);

}  // namespace baton::worker
