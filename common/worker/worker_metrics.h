// The metrics of design.md 9 that both roles have. Label sets are resolved
// here, at start-up. The step loop's thread observes and counts what happens;
// what is read off (Set...) is set by one other thread at a time, a scrape.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/kv/block_pool.h"
#include "common/kv/state_format.h"
#include "common/metrics/metrics.h"
#include "common/worker/worker_runtime.h"

namespace baton::worker {

class WorkerMetrics final {
 public:
  // `set` outlives it. `phase`: "prefill" or "decode". `sequence_states` are
  // the label values of baton_sequences, `handoff_stages` those of
  // baton_handoff_seconds.
  struct Config {
    metrics::MetricSet* set = nullptr;
    std::string phase;
    std::vector<std::string> sequence_states;
    std::vector<std::string> handoff_stages;
  };
  explicit WorkerMetrics(const Config& config);

  // One step of `tokens` tokens took `duration`:
  // baton_step_seconds, baton_step_tokens, baton_step_tokens_total{phase}.
  void ObserveStep(int64_t tokens, absl::Duration duration);
  // baton_blocks{state} and baton_slots{state}.
  void SetBlocks(const kv::BlockCounts& counts);
  // baton_blocks_orphaned.
  void SetOrphaned(int32_t orphaned);
  // baton_sequences{state}; a state that was not declared is a bug.
  void SetSequences(absl::string_view state, int64_t count);
  // baton_handoff_seconds{stage}.
  void ObserveStage(absl::string_view stage, absl::Duration duration);
  // baton_cancel_release_steps: steps between the arrival of a cancel and the
  // return of the sequence's memory.
  void ObserveCancelRelease(int64_t steps);
  // baton_handoff_failures_total{reason}, by the ErrorReason of `status`.
  void CountHandoffFailure(const absl::Status& status);
  // baton_handoff_bytes_total{component}: `total` since the start, grows only.
  void SetHandoffBytes(kv::Component component, int64_t total);
  // baton_links{state="up"}.
  void SetLinksUp(int64_t links);
  // baton_device_memory_bytes{use}, baton_compute_policy_info,
  // baton_kernel_path_info.
  void SetRuntime(WorkerRuntime* runtime);

 private:
  using Gauges = std::map<std::string, prometheus::Gauge*, std::less<>>;
  using Histograms = std::map<std::string, prometheus::Histogram*, std::less<>>;

  metrics::MetricSet* const set_;
  prometheus::Histogram& step_seconds_;
  prometheus::Histogram& step_tokens_;
  prometheus::Counter* step_tokens_total_;
  prometheus::Histogram& cancel_release_steps_;
  prometheus::Gauge& orphaned_;
  prometheus::Gauge* links_up_;
  Gauges blocks_;
  Gauges slots_;
  Gauges sequences_;
  Histograms stages_;
  std::map<std::string, prometheus::Counter*, std::less<>> failures_;
  std::map<kv::Component, prometheus::Counter*> bytes_;
};

}  // namespace baton::worker
