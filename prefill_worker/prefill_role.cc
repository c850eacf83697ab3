#include "prefill_worker/prefill_role.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/handoff/sender.h"
#include "common/kv/state_format.h"

namespace baton::prefill_worker {

PrefillRole::PrefillRole(const PrefillOptions& options,
                         transfer::LinkDialer* dialer)
    : options_(options), dialer_(dialer), service_(Clock::Real()) {}

PrefillRole::~PrefillRole() = default;

absl::Status PrefillRole::Start(const worker::WorkerContext& context) {
  worker::WorkerRuntime& runtime = *context.runtime;
  const EngineOptions engine{
      .scheduler = {.max_step_tokens = context.options->max_step_tokens,
                    .max_step_prompts = runtime.model_options().max_step_spans,
                    .chunk_tokens = options_.chunk_tokens,
                    .chunk_alignment = kv::kBlockTokens},
      .model_digest = runtime.model_digest(),
      .max_backlog_tokens = options_.max_backlog_tokens,
      .attach_timeout = options_.attach_timeout,
      .poison_free_pages = context.options->poison_free_pages};
  PrefillWorkerDependencies dependencies{.model = runtime.model(),
                                         .store = runtime.store(),
                                         .pool = runtime.pool(),
                                         .metrics = context.metrics,
                                         .clock = context.clock,
                                         .random = context.random};
  dependencies.make_sender = [&](std::function<void()> on_event) {
    return handoff::CreateSender(
        {.identity = {.worker = context.options->name,
                      .incarnation = context.incarnation,
                      .model_digest = runtime.model_digest(),
                      .state_format_hash = runtime.state_format_hash(),
                      .node = context.options->node},
         .store = runtime.store(),
         .dialer = dialer_,
         .clock = context.clock,
         .on_event = std::move(on_event)});
  };
  ASSIGN_OR_RETURN(worker_,
                   PrefillWorker::Create(engine, std::move(dependencies)));
  worker_->metrics()->common().SetRuntime(&runtime);
  worker_->Start();
  service_.SetIntake(worker_.get());
  return absl::OkStatus();
}

worker::WorkerLoad PrefillRole::Load() const {
  const EngineLoad load = worker_->load();
  return {.free_blocks = load.counts.free,
          .free_slots = load.counts.slots_free,
          .sequences = load.sequences,
          .backlog_tokens = load.backlog_tokens,
          .prefill_tokens_per_second = load.tokens_per_second};
}

void PrefillRole::SetRegistration(worker::Registration* registration) {
  if (registration == nullptr) {
    worker_->SetAdmittedListener(nullptr);
  } else {
    worker_->SetAdmittedListener([registration](HandoffId handoff) {
      registration->NoteAdmitted(handoff);
    });
  }
}

}  // namespace baton::prefill_worker
