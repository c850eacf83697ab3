#include "decode_worker/metrics/decode_metrics.h"

namespace baton::decode_worker {

DecodeMetrics::DecodeMetrics(metrics::MetricSet* set)
    : worker_(
          {.set = set,
           .phase = "decode",
           .sequence_states = {kReservedState, kRunningState, kQuiescingState},
           .handoff_stages = {kReceiveStage, kCommitStage}}),
      sampled_(set->Counter(
          "baton_sampled_tokens_total",
          "Output tokens sampled. One more per sequence than "
          "baton_step_tokens_total{phase=\"decode\"}: the first token comes "
          "from the hand-off's logits. A larger gap means that sequences end "
          "right after their hand-off.")),
      slow_readers_(set->Counter(
          "baton_slow_readers_total",
          "Calls cut because nothing was read for --slow-reader-timeout. If it "
          "rises, look at the routers and at their clients, not here.")),
      open_calls_(set->Gauge(
          "baton_open_calls",
          "Decode calls that are open. Far above baton_sequences it means that "
          "readers are behind and finished output waits for them.")) {}

}  // namespace baton::decode_worker
