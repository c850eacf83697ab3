// The decode role as RunWorker drives it: both services before loading, the
// worker with its receiver after it.
#pragma once

#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/handoff/receiver.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transfer/grpc_link_service.h"
#include "common/transfer/late_acceptor.h"
#include "common/transfer/tcp_segment_listener.h"
#include "common/worker/worker_main.h"
#include "decode_worker/decode_worker.h"
#include "decode_worker/metrics/decode_metrics.h"
#include "decode_worker/output/output_vocabulary.h"
#include "decode_worker/service/decode_service.h"

namespace baton::decode_worker {

// What the decode binary has in addition to worker::WorkerOptions.
struct DecodeOptions {
  int32_t max_batch = 0;  // sequences in one step; 0: as many as slots
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  absl::Duration lease = absl::Seconds(10);  // extended by prefill progress
};

class DecodeRole final : public worker::WorkerRole {
 public:
  explicit DecodeRole(const DecodeOptions& options) : options_(options) {}
  ~DecodeRole() override;

  worker::Role role() const override { return worker::Role::kDecode; }
  absl::Status Prepare(const worker::WorkerContext& context) override;
  std::vector<grpc::Service*> Services() override {
    return {&service_, link_service_.get()};
  }
  absl::Status Start(const worker::WorkerContext& context) override;
  worker::StepLoop* loop() override { return worker_->loop(); }
  worker::WorkerLoad Load() const override { return worker_->load(); }
  void SetRegistration(worker::Registration* registration) override;
  void BeginDrain() override { worker_->BeginDrain(); }
  bool Drained() const override { return worker_->drained(); }
  void EndDrain() override { worker_->EndDrain(); }
  void Stop() override;

 private:
  void NoteAdmitted(HandoffId handoff);

  const DecodeOptions options_;
  DecodeService service_;
  transfer::LateAcceptor acceptor_;
  // Destroyed in reverse: links end before what they deliver to.
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;  // null: none in the model
  std::unique_ptr<OutputVocabulary> vocabulary_;
  std::unique_ptr<DecodeMetrics> metrics_;
  std::unique_ptr<DecodeWorker> worker_;
  std::unique_ptr<handoff::Receiver> receiver_;  // wakes the worker
  std::unique_ptr<transfer::TcpSegmentListener> listener_;
  std::unique_ptr<transfer::GrpcLinkService> link_service_;

  Mutex mu_;
  worker::Registration* registration_ BATON_GUARDED_BY(mu_) = nullptr;
};

}  // namespace baton::decode_worker
