// The decode worker's metric set (design.md 9): what both roles have, and what
// is sampled and streamed.
#pragma once

#include <cstdint>

#include "common/metrics/metrics.h"
#include "common/worker/worker_metrics.h"

namespace baton::decode_worker {

// Label values of baton_sequences.
inline constexpr char kReservedState[] = "reserved";
inline constexpr char kRunningState[] = "running";
inline constexpr char kQuiescingState[] = "quiescing";
// Label values of baton_handoff_seconds.
inline constexpr char kReceiveStage[] = "receive";  // reservation to seal
inline constexpr char kCommitStage[] = "commit";    // seal to commit

// Set from the step loop's thread.
class DecodeMetrics final {
 public:
  // `set` outlives it.
  explicit DecodeMetrics(metrics::MetricSet* set);

  worker::WorkerMetrics* worker() { return &worker_; }
  void CountSampled(int64_t tokens) {
    sampled_.Increment(static_cast<double>(tokens));
  }
  void CountSlowReader() { slow_readers_.Increment(); }
  void SetOpenCalls(int64_t calls) {
    open_calls_.Set(static_cast<double>(calls));
  }

 private:
  worker::WorkerMetrics worker_;
  prometheus::Counter& sampled_;
  prometheus::Counter& slow_readers_;
  prometheus::Gauge& open_calls_;
};

}  // namespace baton::decode_worker
