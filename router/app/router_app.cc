#include "router/app/router_app.h"

#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/chat/chat_encoder.h"
#include "common/metrics/metrics.h"
#include "common/request/request.h"
#include "common/tokenizer/tokenizer.h"
#include "router/dispatch/timer_queue.h"
#include "router/frontend/inference_service.h"
#include "router/frontend/run_table.h"
#include "router/frontend/work_pool.h"
#include "router/legs/grpc_legs.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/cluster_service.h"
#include "router/registry/registry.h"

namespace baton::router::app {
namespace {

constexpr char kVersion[] = "0.1.0";
constexpr size_t kDigestHexDigits = 64;
// Judging heartbeats a few times per interval bounds how late a loss is seen.
constexpr int kSweepsPerInterval = 4;
// What a cancelled call may take to end before we go on without it.
constexpr absl::Duration kCancelGrace = absl::Seconds(5);
// For statuses that are on their way out when nothing runs any more.
constexpr absl::Duration kLastAnswersGrace = absl::Seconds(1);

absl::StatusOr<std::string> DigestFromHex(const std::string& hex) {
  if (hex.empty()) return std::string();
  if (hex.size() != kDigestHexDigits ||
      hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("model digest '", hex, "': expected ", kDigestHexDigits,
                     " hex digits"));
  }
  return absl::HexStringToBytes(hex);
}

}  // namespace

// In order of construction; destroyed in reverse.
struct RouterApp::Parts {
  RouterOptions options;
  const Clock* clock = nullptr;
  Random* random = nullptr;

  baton::metrics::MetricSet metric_set;
  std::unique_ptr<metrics::RouterMetrics> metrics;
  frontend::ModelFacts facts;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<chat::ChatEncoder> chat_encoder;
  std::unique_ptr<registry::Registry> registry;
  std::unique_ptr<dispatch::AdmissionQueue> queue;
  std::unique_ptr<dispatch::TimerQueue> timers;
  std::unique_ptr<legs::GrpcLegFactory> legs;
  frontend::RunTable table;
  dispatch::RunContext context;
  std::unique_ptr<frontend::Validator> validator;
  std::unique_ptr<frontend::WorkPool> pool;
  std::unique_ptr<frontend::InferenceService> inference;
  std::unique_ptr<registry::ClusterService> cluster;
  std::unique_ptr<baton::metrics::MetricsServer> metrics_server;
  std::unique_ptr<rpc::Server> cluster_server;
  std::unique_ptr<rpc::Server> public_server;

  // A checkpoint without tokenizer.json is served by token ids only.
  absl::Status LoadTokenizer() {
    const std::string path = absl::StrCat(options.model_dir, "/tokenizer.json");
    std::error_code ignored;  // unreadable: FromFile says why
    if (!std::filesystem::exists(path, ignored)) {
      LogWarning("no_tokenizer", {{"path", path}});
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(tokenizer, tokenizer::Tokenizer::FromFile(path));
    if (tokenizer->vocab_size() > facts.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has ids up to ", tokenizer->vocab_size() - 1,
                       ", config.json a vocabulary of ", facts.vocab_size));
    }
    ASSIGN_OR_RETURN(chat_encoder,
                     chat::ChatEncoder::Create(tokenizer.get(), {}));
    return absl::OkStatus();
  }

  // Guards health and the end; taken before any other lock.
  Mutex mu;
  bool draining BATON_GUARDED_BY(mu) = false;
  bool serving BATON_GUARDED_BY(mu) = false;
  bool drained BATON_GUARDED_BY(mu) = false;
};

RouterApp::RouterApp(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<RouterApp>> RouterApp::Start(
    const RouterOptions& options, const Clock* clock, Random* random) {
  auto app =
      std::unique_ptr<RouterApp>(new RouterApp(std::make_unique<Parts>()));
  Parts& p = *app->parts_;
  p.options = options;
  p.clock = clock;
  p.random = random;

  ASSIGN_OR_RETURN(const std::string digest,
                   DigestFromHex(options.model_digest));
  ASSIGN_OR_RETURN(p.facts, frontend::ReadModelFacts(options.model_dir));
  RETURN_IF_ERROR(p.LoadTokenizer());

  p.metrics = std::make_unique<metrics::RouterMetrics>(&p.metric_set);
  p.registry = std::make_unique<registry::Registry>(
      clock, registry::RegistryOptions{
                 .heartbeat_interval = options.heartbeat_interval,
                 .model_digest = digest});
  p.queue = std::make_unique<dispatch::AdmissionQueue>(options.queue);
  p.timers = std::make_unique<dispatch::TimerQueue>(clock);
  p.legs = std::make_unique<legs::GrpcLegFactory>(
      clock,
      [registry = p.registry.get()] { return registry->model_digest(); });
  p.context = {
      .clock = clock,
      .random = random,
      .timers = p.timers.get(),
      .queue = p.queue.get(),
      .registry = p.registry.get(),
      .legs = p.legs.get(),
      .metrics = p.metrics.get(),
      .options = options.run,
      .on_end = [table = &p.table](const RequestId& id) { table->Remove(id); }};
  p.validator = std::make_unique<frontend::Validator>(
      p.facts, options.limits, p.tokenizer.get(), p.chat_encoder.get(), random);
  p.pool = std::make_unique<frontend::WorkPool>(options.encode_threads);
  p.inference = std::make_unique<frontend::InferenceService>(
      frontend::InferenceServiceDeps{.run = &p.context,
                                     .validator = p.validator.get(),
                                     .table = &p.table,
                                     .pool = p.pool.get(),
                                     .facts = p.facts,
                                     .version = kVersion});
  p.cluster = std::make_unique<registry::ClusterService>(
      clock, p.registry.get(),
      registry::ClusterServiceOptions{
          .router_incarnation = random->Uint64() | 1,
          .version = kVersion,
          .running_requests = [table = &p.table] { return table->size(); }});
  metrics::RouterMetrics::ExportGauges(
      &p.metric_set,
      {.registry = p.registry.get(),
       .running = [queue = p.queue.get()] { return queue->running(); },
       .waiting = [queue = p.queue.get()] { return queue->waiting(); }});
  p.registry->set_on_capacity([app = app.get()] {
    app->parts_->queue->CapacityFreed();
    app->UpdateHealth();
  });

  if (!options.metrics.empty()) {
    ASSIGN_OR_RETURN(p.metrics_server, baton::metrics::MetricsServer::Start(
                                           options.metrics, p.metric_set));
  }
  ASSIGN_OR_RETURN(
      p.public_server,
      rpc::Server::Start({.address = options.listen,
                          .services = {p.inference.get()},
                          .max_message_bytes = options.max_message_bytes,
                          .reflection = true}));
  // Workers come only when the public side stands: their first heartbeat sets
  // its health.
  ASSIGN_OR_RETURN(p.cluster_server,
                   rpc::Server::Start({.address = options.cluster,
                                       .services = {p.cluster.get()}}));
  p.cluster_server->SetServing(true);
  p.timers->StartThread();
  app->ScheduleSweep();
  LogInfo("router_ready", {{"listen", p.public_server->address()},
                           {"cluster", p.cluster_server->address()},
                           {"metrics", app->metrics_address()},
                           {"model", options.model_dir},
                           {"context_tokens", p.facts.context_tokens},
                           {"vocab_size", p.facts.vocab_size}});
  return app;
}

RouterApp::~RouterApp() { Drain(absl::ZeroDuration()); }

void RouterApp::ScheduleSweep() {
  Parts& p = *parts_;
  p.timers->Schedule(
      p.clock->Now() + p.options.heartbeat_interval / kSweepsPerInterval,
      [this] {
        parts_->registry->Sweep();
        UpdateHealth();
        ScheduleSweep();
      });
}

void RouterApp::UpdateHealth() {
  Parts& p = *parts_;
  MutexLock lock(&p.mu);
  const bool serving = !p.draining && p.registry->CanServe();
  if (serving == p.serving || p.public_server == nullptr) return;
  p.serving = serving;
  p.public_server->SetServing(serving);
  LogInfo("health", {{"serving", serving}});
}

void RouterApp::Drain(absl::Duration drain_timeout) {
  Parts& p = *parts_;
  {
    MutexLock lock(&p.mu);
    if (p.drained) return;
    p.drained = true;
    p.draining = true;
  }
  if (p.inference != nullptr) p.inference->StopAccepting();
  if (p.public_server != nullptr) {
    UpdateHealth();
    LogInfo("draining", {{"requests", p.table.size()}});
    // When the time is over the runs end themselves, with a reason; gRPC's own
    // cancel comes only after that.
    p.table.WaitEmpty(drain_timeout);
    p.table.CancelAll(request::MakeError(
        absl::StatusCode::kUnavailable,
        "this router is shutting down and its drain timeout passed",
        {.reason = request::ErrorReason::kDraining}));
    p.table.WaitEmpty(kCancelGrace);
    p.public_server->Shutdown(kLastAnswersGrace);
  }
  if (p.cluster_server != nullptr)
    p.cluster_server->Shutdown(absl::ZeroDuration());
  p.pool = nullptr;
  if (p.legs != nullptr) p.legs->Shutdown(kCancelGrace);
  if (p.timers != nullptr) p.timers->Stop();
  LogInfo("router_stopped");
}

const std::string& RouterApp::listen_address() const {
  return parts_->public_server->address();
}
const std::string& RouterApp::cluster_address() const {
  return parts_->cluster_server->address();
}
std::string RouterApp::metrics_address() const {
  return parts_->metrics_server == nullptr ? ""
                                           : parts_->metrics_server->address();
}
int64_t RouterApp::running_requests() const { return parts_->table.size(); }
int64_t RouterApp::live_calls() const { return parts_->legs->live_calls(); }
baton::metrics::MetricSet* RouterApp::metric_set() {
  return &parts_->metric_set;
}
std::string RouterApp::ExposeMetrics() const {
  return parts_->metric_set.Expose();
}

}  // namespace baton::router::app
