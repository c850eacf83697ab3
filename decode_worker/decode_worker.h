// A decode worker without its network: the engine on its step loop, the output
// pump, and the thread-safe door that calls go through.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/worker/registration.h"
#include "common/worker/step_loop.h"
#include "decode_worker/engine/engine.h"
#include "decode_worker/service/decode_call.h"

namespace baton::decode_worker {

struct DecodeWorkerOptions {
  EngineOptions engine;                   // `notify` is set by the worker
  metrics::MetricSet* metrics = nullptr;  // of engine.metrics
  StartLimits limits;
  // A request was admitted: named in the next load report. Step loop's thread.
  std::function<void(HandoffId)> on_admitted;
};

// Thread-safe.
class DecodeWorker final : public DecodeBackend {
 public:
  explicit DecodeWorker(DecodeWorkerOptions options);
  // Stops.
  ~DecodeWorker() override;

  // Starts the step loop.
  void Start();
  // For the receiver: it has events.
  void Wake() { loop_.Wake(); }
  worker::StepLoop* loop() { return &loop_; }

  absl::Status Start(StartRequest start,
                     const std::shared_ptr<RequestOutput>& output) override;
  void Reticket(const std::shared_ptr<RequestOutput>& output,
                Attempt attempt) override;
  void Cancel(const std::shared_ptr<RequestOutput>& output,
              const absl::Status& status) override;
  const OutputVocabulary* vocabulary() const override {
    return options_.engine.vocabulary;
  }
  Clock* clock() const override { return options_.engine.clock; }

  // No new requests; running ones go on.
  void BeginDrain();
  // The time to drain is over: ends every call with UNAVAILABLE.
  void EndDrain();
  // Nothing is held and no call is open. Meaningful after BeginDrain.
  bool drained() const;
  EngineStats stats() const { return engine_.stats(); }
  worker::WorkerLoad load() const;
  // Ends every call with UNAVAILABLE and joins the loop. Idempotent.
  void Stop();

 private:
  DecodeWorkerOptions options_;
  OutputPump pump_;
  Engine engine_;  // step loop's thread, except stats()
  worker::StepLoop loop_;
  std::unique_ptr<metrics::ScrapeUpdate> on_scrape_;  // reads engine, receiver
};

}  // namespace baton::decode_worker
