// The prefill role as RunWorker drives it: the service before loading, the
// worker with its links after it.
#pragma once

#include <memory>
#include <vector>

#include "common/transfer/link.h"
#include "common/worker/worker_main.h"
#include "prefill_worker/prefill_worker.h"
#include "prefill_worker/service/prefill_service.h"

namespace baton::prefill_worker {

// What the prefill binary has in addition to worker::WorkerOptions.
struct PrefillOptions {
  int32_t chunk_tokens = 512;  // of one prompt per step, multiple of 256
  int64_t max_backlog_tokens = 32'768;
  absl::Duration attach_timeout = absl::Seconds(10);
};

class PrefillRole final : public worker::WorkerRole {
 public:
  // `dialer` opens the links to receivers; outlives the role.
  PrefillRole(const PrefillOptions& options, transfer::LinkDialer* dialer);
  ~PrefillRole() override;

  worker::Role role() const override { return worker::Role::kPrefill; }
  std::vector<grpc::Service*> Services() override { return {&service_}; }
  absl::Status Start(const worker::WorkerContext& context) override;
  worker::StepLoop* loop() override { return worker_->loop(); }
  worker::WorkerLoad Load() const override;
  int64_t max_backlog_tokens() const override {
    return options_.max_backlog_tokens;
  }
  void SetRegistration(worker::Registration* registration) override;
  void BeginDrain() override { worker_->BeginDrain(); }
  bool Drained() const override { return worker_->Drained(); }
  void Stop() override { worker_->Stop(); }

 private:
  const PrefillOptions options_;
  transfer::LinkDialer* const dialer_;
  PrefillServiceImpl service_;
  std::unique_ptr<PrefillWorker> worker_;
};

}  // namespace baton::prefill_worker
