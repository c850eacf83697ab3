#include "common/worker/worker_metrics.h"

#include <string>

#include "common/request/request.h"
#include "common/testing/status_matchers.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

TEST(WorkerMetricsTest, ExposesWhatWasSet) {
  metrics::MetricSet set;
  WorkerMetrics metrics({.set = &set,
                         .phase = "prefill",
                         .sequence_states = {"running"},
                         .handoff_stages = {"transfer"}});
  metrics.ObserveStep(300, absl::Milliseconds(20));
  metrics.ObserveStep(5, absl::Milliseconds(1));
  metrics.SetBlocks({.total = 10,
                     .free = 4,
                     .reserved_idle = 3,
                     .active = 2,
                     .cached = 1,
                     .slots_total = 5,
                     .slots_free = 2});
  metrics.SetOrphaned(0);
  metrics.SetSequences("running", 7);
  metrics.ObserveStage("transfer", absl::Seconds(1));
  metrics.CountHandoffFailure(
      request::MakeError(absl::StatusCode::kDataLoss, "x",
                         {.reason = request::ErrorReason::kHandoffRejected}));
  metrics.SetHandoffBytes(kv::Component::kC4, 100);
  metrics.SetHandoffBytes(kv::Component::kC4, 160);
  metrics.SetLinksUp(2);
  metrics.ObserveCancelRelease(0);
  metrics.ObserveCancelRelease(2);
  const std::string text = set.Expose();
  for (const char* line :
       {"baton_step_tokens_total{phase=\"prefill\"} 305",
        "baton_step_seconds_count 2", "baton_step_tokens_sum 305",
        "baton_blocks{state=\"free\"} 4",
        "baton_blocks{state=\"reserved_idle\"} 3",
        "baton_blocks{state=\"active\"} 2", "baton_blocks{state=\"cached\"} 1",
        "baton_slots{state=\"used\"} 3", "baton_blocks_orphaned 0",
        "baton_sequences{state=\"running\"} 7",
        "baton_handoff_seconds_count{stage=\"transfer\"} 1",
        "baton_handoff_failures_total{reason=\"handoff_rejected\"} 1",
        "baton_handoff_bytes_total{component=\"c4\"} 160",
        "baton_links{state=\"up\"} 2",
        "baton_cancel_release_steps_bucket{le=\"0\"} 1",
        "baton_cancel_release_steps_bucket{le=\"1\"} 1",
        "baton_cancel_release_steps_bucket{le=\"2\"} 2"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace baton::worker
