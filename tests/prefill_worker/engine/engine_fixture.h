// An engine over the demo model with a scripted sender, driven turn by turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint.h"
#include "common/device/thread_pool.h"
#include "common/handoff/sender.h"
#include "common/metrics/metrics.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "prefill_worker/engine/engine.h"

namespace baton::prefill_worker {

// Records what it is told as "start 1", "rows 256", "seal", "cancel"; the test
// says what the receiver does. Thread-safe.
class FakeSender final : public handoff::Sender {
 public:
  absl::Status Start(const handoff::SendRequest& request) override;
  void RowsComplete(HandoffId handoff, int64_t processed) override;
  void Seal(HandoffId handoff, handoff::SealRequest seal) override;
  void Cancel(HandoffId handoff, absl::string_view reason) override;
  std::vector<handoff::SenderEvent> TakeEvents() override;
  handoff::SenderStats stats() const override { return {}; }

  void Push(handoff::SenderEventKind kind, HandoffId handoff, Attempt attempt,
            absl::Status status = absl::OkStatus());
  std::vector<std::string> calls() const;
  std::vector<float> logits() const;  // of the latest seal
  Sha256Digest prompt_hash() const;   // of the latest seal
  void set_start_status(absl::Status status) { start_status_ = status; }
  // Commits by itself on Seal and turns quiet by itself after each end.
  void set_automatic(std::function<void()> on_event) {
    automatic_ = true;
    on_event_ = std::move(on_event);
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> calls_ BATON_GUARDED_BY(mu_);
  std::vector<handoff::SenderEvent> events_ BATON_GUARDED_BY(mu_);
  handoff::SealRequest seal_ BATON_GUARDED_BY(mu_);
  Attempt attempt_ BATON_GUARDED_BY(mu_) = 0;
  absl::Status start_status_;
  bool automatic_ = false;
  std::function<void()> on_event_;
};

// Records what a call would be told: "admitted", "started", "progress 256",
// "sealed", "verdict 1", "finished OK".
class RecordingObserver final : public PromptObserver {
 public:
  void OnAdmitted(absl::Duration, int64_t backlog_tokens) override {
    backlog = backlog_tokens;
    log.push_back("admitted");
  }
  void OnStarted() override { log.push_back("started"); }
  void OnProgress(int32_t processed) override;
  void OnSealed(int64_t us) override {
    prefill_us = us;
    log.push_back("sealed");
  }
  void OnVerdict(bool committed) override;
  void OnFinished(const absl::Status& status) override;

  std::vector<std::string> log;
  std::optional<absl::Status> status;  // set once finished
  int64_t backlog = -1;
  int64_t prefill_us = -1;
};

// The demo checkpoint and a model over it, loaded once per test binary.
class SharedModel final {
 public:
  static SharedModel& Get();
  model::Model* model() { return model_.get(); }
  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  const kv::StateFormat& format() const { return format_; }

 private:
  SharedModel();
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<device::ThreadPool> threads_;
  kv::StateFormat format_;
  std::unique_ptr<model::Model> model_;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlocks = 16;
  static constexpr int32_t kSlots = 4;

  // `options.model_digest` is filled in.
  void Build(EngineOptions options = {});

  static HandoffId Handoff(uint64_t n) { return {.hi = 1, .lo = n}; }
  PromptRequest Request(uint64_t n, int32_t tokens, Attempt attempt = 1);
  std::shared_ptr<RecordingObserver> Admit(PromptRequest request);
  std::shared_ptr<RecordingObserver> Admit(uint64_t n, int32_t tokens,
                                           Attempt attempt = 1) {
    return Admit(Request(n, tokens, attempt));
  }
  static handoff::Ticket TicketFor(uint64_t n, Attempt attempt = 1) {
    return {.handoff = Handoff(n), .attempt = attempt, .endpoints = {"x"}};
  }
  void Attach(const std::shared_ptr<RecordingObserver>& observer, uint64_t n,
              Attempt attempt = 1) {
    engine_->Attach(observer.get(), TicketFor(n, attempt));
  }
  // Turns until nothing is left to compute.
  void RunSteps();
  // One turn after an event of the sender.
  void Deliver(handoff::SenderEventKind kind, uint64_t n, Attempt attempt = 1,
               absl::Status status = absl::OkStatus());
  // Every block and slot is free, and the audit agrees.
  void ExpectAllFree();
  // Exactly this many are held, and the audit agrees.
  void ExpectHeld(int32_t blocks, int32_t slots);
  int64_t TokensProcessed() const;

  testing::FakeClock clock_;
  SeededRandom random_{7};
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<metrics::MetricSet> metric_set_;
  std::unique_ptr<PrefillMetrics> metrics_;
  std::unique_ptr<FakeSender> sender_;
  std::unique_ptr<Engine> engine_;
  std::vector<HandoffId> admitted_;
};

}  // namespace baton::prefill_worker
