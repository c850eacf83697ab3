#include "decode_worker/decode_worker.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"

namespace baton::decode_worker {
namespace {

EngineOptions WithPump(EngineOptions options, OutputPump* pump) {
  options.notify = [pump](OutputPump::Outputs* outputs) {
    pump->Notify(outputs);
  };
  return options;
}

absl::Status Stopping() {
  return request::MakeError(
      absl::StatusCode::kUnavailable,
      "this decode worker stops before the output is complete",
      {.reason = request::ErrorReason::kDraining, .field = ""});
}

}  // namespace

DecodeWorker::DecodeWorker(DecodeWorkerOptions options)
    : options_(std::move(options)),
      engine_(WithPump(options_.engine, &pump_)),
      loop_({.name = "decode-step",
             .clock = options_.engine.clock,
             .iterate = [this] { return engine_.Iterate(); },
             .audit = [this] { engine_.Audit(); },
             .on_stop = [this] { engine_.EndAll(Stopping()); }}),
      on_scrape_(std::make_unique<metrics::ScrapeUpdate>(
          *options_.metrics, [this] { engine_.SetGauges(); })) {}

DecodeWorker::~DecodeWorker() { Stop(); }

void DecodeWorker::Start() { loop_.Start(); }

absl::Status DecodeWorker::Start(StartRequest start,
                                 const std::shared_ptr<RequestOutput>& output) {
  RETURN_IF_ERROR(PrepareStart(options_.limits, &start));
  // The closure is copyable, so the request travels in a shared pointer.
  auto shared = std::make_shared<StartRequest>(std::move(start));
  const bool posted = loop_.Post([this, shared, output] {
    const HandoffId handoff = shared->handoff;
    if (engine_.Start(std::move(*shared), output) && options_.on_admitted) {
      options_.on_admitted(handoff);
    }
  });
  if (posted) return absl::OkStatus();
  if (loop_.health().state == worker::LoopState::kStopped) {
    return request::MakeError(
        absl::StatusCode::kUnavailable, "this decode worker has stopped",
        {.reason = request::ErrorReason::kDraining, .field = ""});
  }
  return request::MakeError(absl::StatusCode::kResourceExhausted,
                            "the step loop's mailbox is full",
                            {.reason = request::ErrorReason::kOverloaded,
                             .field = "",
                             .retry_delay_ms = 100});
}

void DecodeWorker::Reticket(const std::shared_ptr<RequestOutput>& output,
                            Attempt attempt) {
  // A stopped loop has ended the call already.
  (void)loop_.PostNotice(
      [this, output, attempt] { engine_.Reticket(output.get(), attempt); });
}

void DecodeWorker::Cancel(const std::shared_ptr<RequestOutput>& output,
                          const absl::Status& status) {
  (void)loop_.PostNotice([this, output, status, step = engine_.stats().steps] {
    engine_.Cancel(output.get(), status, step);
  });
}

void DecodeWorker::BeginDrain() {
  loop_.SetState(worker::LoopState::kDraining);
  (void)loop_.PostNotice([this] { engine_.BeginDrain(); });
}

void DecodeWorker::EndDrain() {
  (void)loop_.PostNotice([this] { engine_.EndAll(Stopping()); });
}

bool DecodeWorker::drained() const {
  const EngineStats stats = engine_.stats();
  return stats.draining && stats.open_calls == 0 &&
         stats.blocks.free == stats.blocks.total;
}

worker::WorkerLoad DecodeWorker::load() const {
  const EngineStats stats = engine_.stats();
  return {.free_blocks = stats.blocks.free,
          .free_slots = stats.free_seats,
          .sequences = stats.reserved + stats.running + stats.quiescing};
}

void DecodeWorker::Stop() {
  loop_.Stop();
  if (on_scrape_ != nullptr) {
    on_scrape_ = nullptr;
    engine_.SetGauges();  // what scrapes tell from here on
  }
}

}  // namespace baton::decode_worker
