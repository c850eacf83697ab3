#include "decode_worker/decode_role.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::decode_worker {
namespace {

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// A checkpoint without a tokenizer serves token ids and no text.
absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> LoadTokenizer(
    const std::string& model) {
  const std::string path = absl::StrCat(model, "/tokenizer.json");
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    LogWarning("no_tokenizer", {{"path", path}});
    return nullptr;
  }
  return tokenizer::Tokenizer::FromFile(path);
}

}  // namespace

DecodeRole::~DecodeRole() = default;

absl::Status DecodeRole::Prepare(const worker::WorkerContext& context) {
  const worker::WorkerOptions& options = *context.options;
  ASSIGN_OR_RETURN(listener_, transfer::TcpSegmentListener::Create(
                                  {.bind_host = HostOf(options.listen),
                                   .advertise_host = HostOf(options.advertise),
                                   .clock = context.clock,
                                   .random = context.random}));
  link_service_ = std::make_unique<transfer::GrpcLinkService>(
      &acceptor_, listener_.get(), context.incarnation);
  return absl::OkStatus();
}

absl::Status DecodeRole::Start(const worker::WorkerContext& context) {
  const worker::WorkerOptions& options = *context.options;
  worker::WorkerRuntime& runtime = *context.runtime;
  ASSIGN_OR_RETURN(tokenizer_, LoadTokenizer(options.model));
  const std::vector<int32_t>& eos_token_ids =
      runtime.checkpoint().generation_config().eos_token_ids;
  vocabulary_ =
      std::make_unique<OutputVocabulary>(tokenizer_.get(), eos_token_ids);
  metrics_ = std::make_unique<DecodeMetrics>(context.metrics);
  metrics_->worker()->SetRuntime(&runtime);
  ASSIGN_OR_RETURN(
      receiver_,
      handoff::CreateReceiver(
          {.identity = {.worker = options.name,
                        .incarnation = context.incarnation,
                        .model_digest = runtime.model_digest(),
                        .state_format_hash = runtime.state_format_hash(),
                        .node = options.node},
           .endpoints = {context.advertise},
           .store = runtime.store(),
           .vocab_size = runtime.model()->vocab_size(),
           .clock = context.clock,
           // Links are accepted only after the worker exists.
           .on_event = [this] { worker_->Wake(); },
           .lease = options_.lease}));
  const int32_t seats = std::min(
      options.slots, std::min(runtime.model_options().max_step_spans,
                              runtime.model_options().max_step_tokens));
  worker_ = std::make_unique<DecodeWorker>(DecodeWorkerOptions{
      .engine = {.model = runtime.model(),
                 .store = runtime.store(),
                 .pool = runtime.pool(),
                 .receiver = receiver_.get(),
                 .vocabulary = vocabulary_.get(),
                 .metrics = metrics_.get(),
                 .eos_token_ids = eos_token_ids,
                 .max_seats = options_.max_batch == 0
                                  ? seats
                                  : std::min(seats, options_.max_batch),
                 .clock = context.clock,
                 .random = context.random,
                 .slow_reader_timeout = options_.slow_reader_timeout,
                 .poison_free_pages = options.poison_free_pages},
      .metrics = context.metrics,
      .limits = {.vocab_size = runtime.model()->vocab_size(),
                 .model_digest = runtime.model_digest(),
                 .has_tokenizer = tokenizer_ != nullptr},
      .on_admitted = [this](HandoffId handoff) { NoteAdmitted(handoff); }});
  worker_->Start();
  acceptor_.Set(receiver_->acceptor());
  service_.SetBackend(worker_.get());
  return absl::OkStatus();
}

void DecodeRole::SetRegistration(worker::Registration* registration) {
  MutexLock lock(&mu_);
  registration_ = registration;
}

void DecodeRole::NoteAdmitted(HandoffId handoff) {
  MutexLock lock(&mu_);
  if (registration_ != nullptr) registration_->NoteAdmitted(handoff);
}

void DecodeRole::Stop() {
  // The server has ended all calls; what the links still deliver is dropped.
  worker_->Stop();
  link_service_.reset();
  listener_.reset();
  receiver_.reset();
  worker_.reset();
}

}  // namespace baton::decode_worker
