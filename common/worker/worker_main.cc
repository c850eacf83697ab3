#include "common/worker/worker_main.h"

#include <pthread.h>
#include <signal.h>

#include <ctime>
#include <utility>

#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/worker/health_monitor.h"

namespace baton::worker {
namespace {

// Calls that still run when the server shuts down have this long before they
// are cancelled.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

LogLevel LevelOf(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

// SIGTERM and SIGINT as something to wait for. Created before any other thread,
// so that all threads inherit the block and the signals wait for us.
class StopSignals final {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Signal number, or 0 after `timeout`.
  int WaitFor(absl::Duration timeout) {
    const timespec wait = absl::ToTimespec(timeout);
    const int signal = sigtimedwait(&set_, nullptr, &wait);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{};
};

WorkerDescription Describe(const WorkerContext& context,
                           const WorkerRole& role) {
  WorkerRuntime& runtime = *context.runtime;
  return {.name = context.options->name,
          .roles = {role.role()},
          .incarnation = context.incarnation,
          .endpoints = {context.advertise},
          .model_digest = runtime.model_digest(),
          .state_format_hash = runtime.state_format_hash(),
          .state_format = runtime.state_format().ToString(),
          .compute_policy = runtime.model()->policy().ToString(),
          .node = context.options->node,
          .blocks = context.options->blocks,
          .slots = context.options->slots,
          .max_positions = runtime.model()->max_positions(),
          .max_backlog_tokens = role.max_backlog_tokens()};
}

// SIGTERM arrived: wait until the role is idle, the time is up, or a second
// signal says that nobody wants to wait.
void Drain(const WorkerOptions& options, const WorkerRole& role,
           StopSignals* signals) {
  const absl::Time end = Clock::Real()->Now() + options.drain_timeout;
  while (!role.Drained()) {
    if (Clock::Real()->Now() >= end) {
      LogWarning("drain_timeout",
                 {{"timeout", absl::FormatDuration(options.drain_timeout)}});
      return;
    }
    if (signals->WaitFor(absl::Milliseconds(50)) != 0) {
      LogWarning("drain_cut_short");
      return;
    }
  }
  LogInfo("drained");
}

absl::Status Run(WorkerOptions options, WorkerRole* role,
                 StopSignals* signals) {
  RETURN_IF_ERROR(FinishWorkerOptions(&options));
  SetLogIdentity(options.name);
  SetLogLevel(LevelOf(options.log_level));
  RETURN_IF_ERROR(ArmFaultsFromEnvironment());

  // Never destroyed: bugs may be reported and counted until the process ends.
  static metrics::MetricSet& metric_set = *new metrics::MetricSet;
  metrics::InstallBugCounter(&metric_set);
  std::unique_ptr<metrics::MetricsServer> metrics_server;
  if (!options.metrics.empty()) {
    ASSIGN_OR_RETURN(metrics_server, metrics::MetricsServer::Start(
                                         options.metrics, metric_set));
  }
  WorkerContext context{.options = &options, .metrics = &metric_set};
  do {
    context.incarnation = context.random->Uint64();
  } while (context.incarnation == 0);
  RETURN_IF_ERROR(role->Prepare(context));
  ASSIGN_OR_RETURN(const auto server,
                   rpc::Server::Start({.address = options.listen,
                                       .services = role->Services(),
                                       .reflection = true}));
  context.bound = server->address();
  context.advertise =
      options.advertise.empty() ? server->address() : options.advertise;
  LogInfo("listening",
          {{"grpc", server->address()},
           {"advertise", context.advertise},
           {"metrics",
            metrics_server == nullptr ? "none" : metrics_server->address()},
           {"incarnation", context.incarnation}});

  ASSIGN_OR_RETURN(const auto runtime, WorkerRuntime::Create(options));
  context.runtime = runtime.get();
  RETURN_IF_ERROR(role->Start(context));
  StepLoop* const loop = role->loop();
  {
    Registration registration({.routers = options.routers,
                               .worker = Describe(context, *role),
                               .load = [role, loop] {
                                 WorkerLoad load = role->Load();
                                 load.tick = loop->health().tick;
                                 load.state = ReportedStateOf(
                                     *loop, Clock::Real()->Now());
                                 return load;
                               }});
    role->SetRegistration(&registration);
    HealthMonitor health({.loop = loop, .on_change = [&](bool serving) {
                            server->SetServing(serving);
                            registration.ReportSoon();
                          }});
    int signal = 0;
    while (signal == 0) {
      signal = signals->WaitFor(absl::Seconds(1));
    }
    LogInfo("draining", {{"signal", signal}});
    role->BeginDrain();
    loop->SetState(LoopState::kDraining);
    health.Check();
    Drain(options, *role, signals);
    role->EndDrain();
    role->SetRegistration(nullptr);
  }
  server->Shutdown(kShutdownGrace);
  role->Stop();
  return absl::OkStatus();
}

}  // namespace

int RunWorker(WorkerOptions options, WorkerRole* role) {
  StopSignals signals;
  const absl::Status status = Run(std::move(options), role, &signals);
  if (!status.ok()) {
    LogError("worker_failed", {{"status", status.ToString()}});
    return 1;
  }
  LogInfo("worker_stopped");
  return 0;
}

}  // namespace baton::worker
