#include "prefill_worker/prefill_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::prefill_worker {

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Create(
    const EngineOptions& options, PrefillWorkerDependencies dependencies) {
  CHECK(dependencies.make_sender != nullptr && dependencies.metrics != nullptr);
  RETURN_IF_ERROR(ValidateSchedulerOptions(options.scheduler));
  if (options.max_backlog_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the backlog holds ", options.max_backlog_tokens,
                     " tokens, expected at least 1"));
  }
  auto worker = std::unique_ptr<PrefillWorker>(new PrefillWorker);
  PrefillWorker* const self = worker.get();
  worker->metrics_ = std::make_unique<PrefillMetrics>(dependencies.metrics);
  worker->loop_ = std::make_unique<worker::StepLoop>(worker::StepLoopOptions{
      .name = "prefill-step",
      .clock = dependencies.clock,
      .iterate = [self] { return self->engine_->Iterate(); },
      .audit = [self] { self->engine_->Audit(); },
      .on_stop = [self] { self->engine_->EndAll(); }});
  ASSIGN_OR_RETURN(worker->sender_,
                   dependencies.make_sender([self] { self->loop_->Wake(); }));
  EngineDependencies engine{.model = dependencies.model,
                            .store = dependencies.store,
                            .pool = dependencies.pool,
                            .sender = worker->sender_.get(),
                            .metrics = worker->metrics_.get(),
                            .clock = dependencies.clock,
                            .random = dependencies.random};
  engine.on_admitted = [self](HandoffId handoff) {
    MutexLock lock(&self->mu_);
    if (self->on_admitted_ != nullptr) {
      self->on_admitted_(handoff);
    }
  };
  worker->engine_ = std::make_unique<Engine>(options, std::move(engine));
  worker->on_scrape_ = std::make_unique<metrics::ScrapeUpdate>(
      *dependencies.metrics, [self] { self->engine_->SetGauges(); });
  return worker;
}

PrefillWorker::~PrefillWorker() { Stop(); }

void PrefillWorker::BeginDrain() {
  loop_->SetState(worker::LoopState::kDraining);
  loop_->PostNotice([this] { engine_->BeginDrain(); });
}

bool PrefillWorker::Drained() const {
  const EngineLoad load = engine_->load();
  return load.draining && load.sequences == 0;
}

void PrefillWorker::Stop() {
  if (loop_ != nullptr) {
    loop_->Stop();
  }
  if (on_scrape_ != nullptr) {
    on_scrape_ = nullptr;
    engine_->SetGauges();  // what scrapes tell from here on
  }
  // Joins the link threads: from here on nothing reads the store.
  sender_ = nullptr;
}

void PrefillWorker::SetAdmittedListener(
    std::function<void(HandoffId)> listener) {
  MutexLock lock(&mu_);
  on_admitted_ = std::move(listener);
}

bool PrefillWorker::Admit(PromptRequest request,
                          std::shared_ptr<PromptObserver> observer) {
  return loop_->Post([this, request = std::move(request),
                      observer = std::move(observer)]() mutable {
    engine_->Admit(std::move(request), std::move(observer));
  });
}

// A refused notice means that the loop has stopped, which ends every prompt.
void PrefillWorker::Attach(std::shared_ptr<PromptObserver> observer,
                           handoff::Ticket ticket) {
  loop_->PostNotice([this, observer = std::move(observer),
                     ticket = std::move(ticket)]() mutable {
    engine_->Attach(observer.get(), std::move(ticket));
  });
}

void PrefillWorker::Cancel(std::shared_ptr<PromptObserver> observer,
                           absl::Status reason) {
  loop_->PostNotice([this, observer = std::move(observer),
                     reason = std::move(reason), step = engine_->load().steps] {
    engine_->Cancel(observer.get(), reason, step);
  });
}

}  // namespace baton::prefill_worker
