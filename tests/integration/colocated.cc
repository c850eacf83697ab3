#include "tests/integration/colocated.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/handoff/sender.h"
#include "common/kv/state_format.h"
#include "common/testing/paths.h"
#include "common/worker/health_monitor.h"

namespace baton::integration {
namespace {

constexpr absl::Duration kServingTimeout = absl::Seconds(20);

worker::WorkerOptions RuntimeOptions(const ColocatedOptions& options) {
  worker::WorkerOptions out;
  out.model = testing::SourcePath("deploy/demo-model");
  out.blocks = options.blocks;
  out.slots = options.slots;
  out.threads = 1;
  out.poison_free_pages = options.poison_free_pages;
  return out;
}

// All blocks and slots are free.
bool AllFree(const kv::BlockCounts& counts) {
  return counts.free == counts.total && counts.slots_free == counts.slots_total;
}

std::string ToString(const kv::BlockCounts& counts) {
  return absl::StrCat(counts.free, "/", counts.total, " blocks and ",
                      counts.slots_free, "/", counts.slots_total,
                      " slots free");
}

}  // namespace

struct Colocated::Prefill {
  std::unique_ptr<worker::WorkerRuntime> runtime;
  metrics::MetricSet metric_set;
  prefill_worker::PrefillServiceImpl service{Clock::Real()};
  std::unique_ptr<prefill_worker::PrefillWorker> worker;
};

struct Colocated::Decode {
  std::string endpoint;  // name in the network
  std::unique_ptr<worker::WorkerRuntime> runtime;
  metrics::MetricSet metric_set;
  std::unique_ptr<decode_worker::OutputVocabulary> vocabulary;
  std::unique_ptr<decode_worker::DecodeMetrics> metrics;
  decode_worker::DecodeService service;
  std::unique_ptr<decode_worker::DecodeWorker> worker;
  std::unique_ptr<handoff::Receiver> receiver;
};

// One gRPC server with the services of one worker of each role.
struct Colocated::Host {
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<worker::Registration> registration;
};

Colocated::Colocated(const ColocatedOptions& options)
    : options_(options), network_(options.sender_clock) {
  // As in main: gRPC's own shutdown between two tests can take ten seconds.
  [[maybe_unused]] static const bool once = [] {
    grpc_init();
    return true;
  }();
}

absl::StatusOr<std::unique_ptr<Colocated>> Colocated::Start(
    const ColocatedOptions& options) {
  auto colocated = std::unique_ptr<Colocated>(new Colocated(options));
  ASSIGN_OR_RETURN(colocated->tokenizer_,
                   tokenizer::Tokenizer::FromFile(testing::SourcePath(
                       "deploy/demo-model/tokenizer.json")));
  for (int32_t i = 0; i < options.decode; ++i) {
    RETURN_IF_ERROR(colocated->StartDecode(i));
  }
  for (int32_t i = 0; i < options.prefill; ++i) {
    RETURN_IF_ERROR(colocated->StartPrefill(i));
  }
  if (options.routers > 0) {
    for (int32_t i = 0; i < options.routers; ++i) {
      RETURN_IF_ERROR(colocated->StartRouter(i));
    }
    for (int32_t i = 0; i < std::max(options.prefill, options.decode); ++i) {
      RETURN_IF_ERROR(colocated->StartHost(i));
    }
    RETURN_IF_ERROR(colocated->WaitUntilServing());
  }
  return colocated;
}

Colocated::~Colocated() { Stop(); }

absl::Status Colocated::StartPrefill(int32_t index) {
  auto part = std::make_unique<Prefill>();
  ASSIGN_OR_RETURN(part->runtime,
                   worker::WorkerRuntime::Create(RuntimeOptions(options_)));
  worker::WorkerRuntime& runtime = *part->runtime;
  prefill_worker::PrefillWorkerDependencies dependencies{
      .model = runtime.model(),
      .store = runtime.store(),
      .pool = runtime.pool(),
      .metrics = &part->metric_set};
  dependencies.make_sender = [&](std::function<void()> on_event) {
    return handoff::CreateSender(
        {.identity = {.worker = absl::StrCat("prefill-", index),
                      .incarnation = static_cast<Incarnation>(100 + index),
                      .model_digest = runtime.model_digest(),
                      .state_format_hash = runtime.state_format_hash(),
                      .node = "here"},
         .store = runtime.store(),
         .dialer = &network_,
         .clock = options_.sender_clock,
         .on_event = std::move(on_event)});
  };
  const prefill_worker::EngineOptions engine{
      .scheduler = {.max_step_tokens = runtime.model_options().max_step_tokens,
                    .max_step_prompts = runtime.model_options().max_step_spans,
                    .chunk_tokens = options_.chunk_tokens,
                    .chunk_alignment = kv::kBlockTokens},
      .model_digest = runtime.model_digest(),
      .poison_free_pages = options_.poison_free_pages};
  ASSIGN_OR_RETURN(part->worker, prefill_worker::PrefillWorker::Create(
                                     engine, std::move(dependencies)));
  part->worker->Start();
  part->service.SetIntake(part->worker.get());
  prefills_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status Colocated::StartDecode(int32_t index) {
  auto part = std::make_unique<Decode>();
  Decode* const decode = part.get();
  ASSIGN_OR_RETURN(part->runtime,
                   worker::WorkerRuntime::Create(RuntimeOptions(options_)));
  worker::WorkerRuntime& runtime = *part->runtime;
  const std::vector<int32_t>& eos_token_ids =
      runtime.checkpoint().generation_config().eos_token_ids;
  part->vocabulary = std::make_unique<decode_worker::OutputVocabulary>(
      tokenizer_.get(), eos_token_ids);
  part->metrics =
      std::make_unique<decode_worker::DecodeMetrics>(&part->metric_set);
  const std::string name = absl::StrCat("decode-", index);
  ASSIGN_OR_RETURN(
      part->receiver,
      handoff::CreateReceiver(
          {.identity = {.worker = name,
                        .incarnation = static_cast<Incarnation>(200 + index),
                        .model_digest = runtime.model_digest(),
                        .state_format_hash = runtime.state_format_hash(),
                        .node = "here"},
           .endpoints = {absl::StrCat("inproc:", name)},
           .store = runtime.store(),
           .vocab_size = runtime.model()->vocab_size(),
           .clock = options_.decode_clock,
           // Links are accepted only after the worker exists.
           .on_event = [decode] { decode->worker->Wake(); },
           .lease = options_.lease}));
  part->worker = std::make_unique<decode_worker::DecodeWorker>(
      decode_worker::DecodeWorkerOptions{
          .engine = {.model = runtime.model(),
                     .store = runtime.store(),
                     .pool = runtime.pool(),
                     .receiver = part->receiver.get(),
                     .vocabulary = part->vocabulary.get(),
                     .metrics = part->metrics.get(),
                     .eos_token_ids = eos_token_ids,
                     .max_seats = options_.slots,
                     .clock = options_.decode_clock,
                     .poison_free_pages = options_.poison_free_pages},
          .metrics = &part->metric_set,
          .limits = {.vocab_size = runtime.model()->vocab_size(),
                     .model_digest = runtime.model_digest()}});
  part->worker->Start();
  RETURN_IF_ERROR(network_.Listen(name, part->receiver->acceptor()).status());
  part->endpoint = name;
  part->service.SetBackend(part->worker.get());
  decodes_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status Colocated::StartRouter(int32_t index) {
  router::app::RouterOptions router;
  router.listen = "127.0.0.1:0";
  router.cluster = "127.0.0.1:0";
  router.metrics = "";
  router.model_dir = testing::SourcePath("deploy/demo-model");
  router.run.queue_timeout = options_.queue_timeouts[std::min(
      static_cast<size_t>(index), options_.queue_timeouts.size() - 1)];
  randoms_.push_back(
      std::make_unique<SeededRandom>(static_cast<uint64_t>(7 + index)));
  ASSIGN_OR_RETURN(auto app, router::app::RouterApp::Start(
                                 router, Clock::Real(), randoms_.back().get()));
  clients_.push_back(std::make_unique<cli::Client>(app->listen_address()));
  routers_.push_back(std::move(app));
  return absl::OkStatus();
}

absl::Status Colocated::StartHost(int32_t index) {
  Prefill* const prefill = index < options_.prefill
                               ? prefills_[static_cast<size_t>(index)].get()
                               : nullptr;
  Decode* const decode = index < options_.decode
                             ? decodes_[static_cast<size_t>(index)].get()
                             : nullptr;
  worker::WorkerRuntime& runtime =
      *(prefill != nullptr ? prefill->runtime : decode->runtime);
  auto host = std::make_unique<Host>();
  worker::RegistrationOptions registration;
  worker::WorkerDescription& worker = registration.worker;
  std::vector<grpc::Service*> services;
  if (prefill != nullptr) {
    services.push_back(&prefill->service);
    worker.roles.push_back(worker::Role::kPrefill);
    worker.max_backlog_tokens =
        prefill_worker::EngineOptions().max_backlog_tokens;
  }
  if (decode != nullptr) {
    services.push_back(&decode->service);
    worker.roles.push_back(worker::Role::kDecode);
  }
  ASSIGN_OR_RETURN(host->server,
                   rpc::Server::Start({.address = "127.0.0.1:0",
                                       .services = std::move(services)}));
  host->server->SetServing(true);
  worker.name = absl::StrCat("host-", index);
  worker.incarnation = static_cast<Incarnation>(1 + index);
  worker.endpoints = {host->server->address()};
  worker.model_digest = runtime.model_digest();
  worker.state_format_hash = runtime.state_format_hash();
  worker.state_format = runtime.state_format().ToString();
  worker.compute_policy = runtime.model()->policy().ToString();
  worker.node = "here";
  worker.blocks = options_.blocks;
  worker.slots = options_.slots;
  worker.max_positions = runtime.model()->max_positions();
  for (const auto& router : routers_) {
    registration.routers.push_back(router->cluster_address());
  }
  // Placement judges a decode worker by blocks and slots and a prefill worker
  // by its backlog, so one report serves both roles.
  registration.load = [prefill, decode] {
    worker::WorkerLoad load;
    if (decode != nullptr) {
      load = decode->worker->load();
      load.tick = decode->worker->loop()->health().tick;
      load.state = worker::ReportedStateOf(*decode->worker->loop(),
                                           Clock::Real()->Now());
    }
    if (prefill != nullptr) {
      const prefill_worker::EngineLoad from = prefill->worker->load();
      if (decode == nullptr) {
        load.free_blocks = from.counts.free;
        load.free_slots = from.counts.slots_free;
        load.tick = prefill->worker->loop()->health().tick;
      }
      load.sequences += from.sequences;
      load.backlog_tokens = from.backlog_tokens;
      load.prefill_tokens_per_second = from.tokens_per_second;
    }
    return load;
  };
  host->registration =
      std::make_unique<worker::Registration>(std::move(registration));
  hosts_.push_back(std::move(host));
  return absl::OkStatus();
}

absl::Status Colocated::WaitUntilServing() const {
  const absl::Time deadline = Clock::Real()->Now() + kServingTimeout;
  const auto serve = [this] {
    for (const auto& host : hosts_) {
      if (host->registration->registered() < options_.routers) return false;
    }
    for (const auto& router : routers_) {
      if (router->ExposeMetrics().find(
              absl::StrCat("baton_workers{role=\"prefill\",state=\"serving\"} ",
                           options_.prefill, "\n")) == std::string::npos ||
          router->ExposeMetrics().find(
              absl::StrCat("baton_workers{role=\"decode\",state=\"serving\"} ",
                           options_.decode, "\n")) == std::string::npos) {
        return false;
      }
    }
    return true;
  };
  while (!serve()) {
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the workers do not serve: ", routers_.front()->ExposeMetrics()));
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return absl::OkStatus();
}

const cli::Client& Colocated::client(int32_t router) const {
  return *clients_.at(static_cast<size_t>(router));
}

router::app::RouterApp& Colocated::router(int32_t index) const {
  return *routers_.at(static_cast<size_t>(index));
}

prefill_worker::PrefillWorker& Colocated::prefill(int32_t index) const {
  return *prefills_.at(static_cast<size_t>(index))->worker;
}

decode_worker::DecodeWorker& Colocated::decode(int32_t index) const {
  return *decodes_.at(static_cast<size_t>(index))->worker;
}

handoff::Receiver& Colocated::receiver(int32_t index) const {
  return *decodes_.at(static_cast<size_t>(index))->receiver;
}

const Sha256Digest& Colocated::model_digest() const {
  return prefills_.front()->runtime->model_digest();
}

int64_t Colocated::received_bytes() const {
  int64_t sum = 0;
  for (const auto& decode : decodes_) {
    for (const auto& [component, bytes] : decode->receiver->stats().bytes) {
      sum += bytes;
    }
  }
  return sum;
}

absl::Status Colocated::WaitUntilIdle(absl::Duration timeout,
                                      Calls calls) const {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  std::string busy;
  do {
    busy.clear();
    for (size_t i = 0; i < prefills_.size(); ++i) {
      const kv::BlockCounts counts = prefills_[i]->worker->load().counts;
      if (!AllFree(counts)) {
        absl::StrAppend(&busy, " prefill-", i, ": ", ToString(counts));
      }
    }
    for (size_t i = 0; i < decodes_.size(); ++i) {
      const decode_worker::EngineStats stats = decodes_[i]->worker->stats();
      if (!AllFree(stats.blocks)) {
        absl::StrAppend(&busy, " decode-", i, ": ", ToString(stats.blocks));
      }
      // Ended calls are forgotten in a sweep, by the decode worker's clock.
      if (calls == Calls::kForgotten && stats.open_calls != 0) {
        absl::StrAppend(&busy, " decode-", i, ": ", stats.open_calls, " calls");
      }
    }
    if (busy.empty()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(1));
  } while (Clock::Real()->Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat("not idle:", busy));
}

void Colocated::ReportSoon() const {
  for (const auto& host : hosts_) host->registration->ReportSoon();
}

void Colocated::Stop() {
  for (const auto& host : hosts_) host->registration->Stop();
  clients_.clear();
  routers_.clear();
  for (const auto& host : hosts_) {
    host->server->Shutdown(absl::Milliseconds(500));
  }
  // Senders first: a receiver outlives the links that deliver to it.
  for (const auto& prefill : prefills_) prefill->worker->Stop();
  for (const auto& decode : decodes_) {
    network_.StopListening(decode->endpoint);
    decode->worker->Stop();
  }
}

absl::Status Colocated::StopAndAudit() {
  Stop();
  const auto audit = [](const kv::BlockPool& pool) {
    RETURN_IF_ERROR(pool.Audit());
    if (pool.orphaned() == 0 && AllFree(pool.counts())) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(ToString(pool.counts()), ", ",
                                            pool.orphaned(), " orphaned"));
  };
  for (const auto& prefill : prefills_) {
    RETURN_IF_ERROR(Annotate(audit(*prefill->runtime->pool()), "prefill"));
  }
  for (const auto& decode : decodes_) {
    RETURN_IF_ERROR(Annotate(audit(*decode->runtime->pool()), "decode"));
  }
  return absl::OkStatus();
}

}  // namespace baton::integration
