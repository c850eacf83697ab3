// Metrics of a prefill worker: those of every worker (common/worker) with this
// role's label values, and what only prefill has.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/metrics/metrics.h"
#include "common/worker/worker_metrics.h"

namespace baton::prefill_worker {

// How a prompt ended here (label of baton_prefill_prompts_total).
enum class Outcome { kCommitted, kRefused, kCancelled, kFailed };

// Used by the step loop's thread.
class PrefillMetrics final {
 public:
  // `set` outlives it.
  explicit PrefillMetrics(metrics::MetricSet* set);

  worker::WorkerMetrics& common() { return common_; }
  // baton_prefill_prompts_total{outcome}.
  void CountPrompt(Outcome outcome);
  // baton_prefill_backlog_tokens.
  void SetBacklog(int64_t tokens);

 private:
  worker::WorkerMetrics common_;
  std::array<prometheus::Counter*, 4> prompts_{};
  prometheus::Gauge& backlog_;
};

}  // namespace baton::prefill_worker
