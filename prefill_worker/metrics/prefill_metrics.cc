#include "prefill_worker/metrics/prefill_metrics.h"

namespace baton::prefill_worker {

PrefillMetrics::PrefillMetrics(metrics::MetricSet* set)
    : common_({.set = set,
               .phase = "prefill",
               .sequence_states = {"waiting", "running", "computed", "sealed",
                                   "quiescing"},
               .handoff_stages = {"queue", "prefill", "attach", "transfer"}}),
      backlog_(set->Gauge(
          "baton_prefill_backlog_tokens",
          "Prompt tokens that wait or run. Divided by the rate of "
          "baton_step_tokens_total it is the queueing time of a new prompt.")) {
  auto& prompts = set->Counters(
      "baton_prefill_prompts_total",
      "Prompts by how they ended here. refused is load and is retried "
      "elsewhere; failed needs a look at baton_handoff_failures_total.");
  prompts_ = {&prompts.Add({{"outcome", "committed"}}),
              &prompts.Add({{"outcome", "refused"}}),
              &prompts.Add({{"outcome", "cancelled"}}),
              &prompts.Add({{"outcome", "failed"}})};
}

void PrefillMetrics::CountPrompt(Outcome outcome) {
  prompts_[static_cast<size_t>(outcome)]->Increment();
}

void PrefillMetrics::SetBacklog(int64_t tokens) {
  backlog_.Set(static_cast<double>(tokens));
}

}  // namespace baton::prefill_worker
