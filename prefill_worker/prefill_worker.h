// A prefill worker inside one process: step loop, engine and sender, without
// sockets. main.cc gives it the real model and links, tests give it fakes.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/handoff/sender.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/worker/step_loop.h"
#include "prefill_worker/engine/engine.h"
#include "prefill_worker/engine/prompt.h"
#include "prefill_worker/metrics/prefill_metrics.h"

namespace baton::prefill_worker {

struct PrefillWorkerDependencies {
  model::Model* model = nullptr;
  kv::KvStore* store = nullptr;
  kv::BlockPool* pool = nullptr;
  metrics::MetricSet* metrics = nullptr;
  // Makes the sender; `on_event` is its option of that name.
  std::function<absl::StatusOr<std::unique_ptr<handoff::Sender>>(
      std::function<void()> on_event)>
      make_sender;
  Clock* clock = Clock::Real();
  Random* random = Random::System();
};

// The intake is thread-safe. Dependencies outlive the worker.
class PrefillWorker final : public PromptIntake {
 public:
  // InvalidArgument for scheduler options that do not fit each other or the
  // model's step capacity; errors of make_sender pass through.
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Create(
      const EngineOptions& options, PrefillWorkerDependencies dependencies);
  // Stops.
  ~PrefillWorker() override;

  void Start() { loop_->Start(); }
  // No admission from here on; what was admitted runs on.
  void BeginDrain();
  // Nothing runs and no memory is held.
  bool Drained() const;
  // Ends every prompt, then stops the loop and the sender. Idempotent.
  void Stop();

  worker::StepLoop* loop() { return loop_.get(); }
  PrefillMetrics* metrics() { return metrics_.get(); }
  EngineLoad load() const { return engine_->load(); }
  // Called, on the loop's thread, with each admitted hand-off; empty: nobody.
  // When this returns, the former one is not running any more.
  void SetAdmittedListener(std::function<void(HandoffId)> listener);

  bool Admit(PromptRequest request,
             std::shared_ptr<PromptObserver> observer) override;
  void Attach(std::shared_ptr<PromptObserver> observer,
              handoff::Ticket ticket) override;
  void Cancel(std::shared_ptr<PromptObserver> observer,
              absl::Status reason) override;

 private:
  PrefillWorker() = default;

  Mutex mu_;
  std::function<void(HandoffId)> on_admitted_ BATON_GUARDED_BY(mu_);
  // Destroyed in reverse: the loop before what it drives, the sender (which
  // wakes the loop and reads the store) before the engine's bookkeeping.
  std::unique_ptr<PrefillMetrics> metrics_;
  std::unique_ptr<worker::StepLoop> loop_;
  std::unique_ptr<handoff::Sender> sender_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<metrics::ScrapeUpdate> on_scrape_;  // reads engine and sender
};

}  // namespace baton::prefill_worker
