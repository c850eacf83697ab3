#include "common/worker/worker_metrics.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/request/request.h"

namespace baton::worker {
namespace {

const prometheus::Histogram::BucketBoundaries& ReleaseBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{0,  1,  2,  3,   4,  8,
                                                  16, 32, 64, 128, 256};
  return *buckets;
}

constexpr auto kLastReason = static_cast<int32_t>(request::ErrorReason::kBug);

}  // namespace

WorkerMetrics::WorkerMetrics(const Config& config)
    : set_(config.set),
      step_seconds_(set_->Histogram(
          "baton_step_seconds",
          "Time of one step. Its upper quantiles bound the inter-token latency "
          "that this worker can give; compare with baton_step_tokens.",
          metrics::StepBuckets())),
      step_tokens_(set_->Histogram(
          "baton_step_tokens",
          "Tokens per step. Small steps at high load mean that work arrives in "
          "drips or that the token budget is too low.",
          metrics::CountBuckets())),
      step_tokens_total_(
          &set_->Counters("baton_step_tokens_total",
                          "Tokens processed by steps, exactly. Its rate is the "
                          "worker's throughput in this phase.")
               .Add({{"phase", config.phase}})),
      cancel_release_steps_(set_->Histogram(
          "baton_cancel_release_steps",
          "Steps that ended between the arrival of a cancel, deadline or other "
          "early end and the return of the sequence's memory. Above 2 means "
          "that transfers hold memory of requests nobody waits for.",
          ReleaseBuckets())),
      orphaned_(set_->Gauge(
          "baton_blocks_orphaned",
          "Blocks neither free nor owned, found by the audit each second. Must "
          "be 0: anything else is a leak, restart the worker and report it.")),
      links_up_(&set_->Gauges("baton_links",
                              "Links to other workers. Fewer than the peers in "
                              "use means that hand-offs have to dial first.")
                     .Add({{"state", "up"}})) {
  auto& blocks = set_->Gauges(
      "baton_blocks",
      "Blocks of 256 positions by state. Free near 0 means that admission "
      "refuses; much reserved_idle means that reservations are made too "
      "early.");
  for (const char* state : {"free", "reserved_idle", "active", "cached"}) {
    blocks_[state] = &blocks.Add({{"state", state}});
  }
  auto& slots =
      set_->Gauges("baton_slots",
                   "Sequence slots by state. Free at 0 means that admission "
                   "refuses although blocks may be free.");
  for (const char* state : {"free", "used"}) {
    slots_[state] = &slots.Add({{"state", state}});
  }
  auto& sequences =
      set_->Gauges("baton_sequences",
                   "Sequences by state. One state that keeps growing names the "
                   "stage that holds the others up.");
  for (const std::string& state : config.sequence_states) {
    sequences_[state] = &sequences.Add({{"state", state}});
  }
  auto& stages = set_->Histograms(
      "baton_handoff_seconds",
      "Time that hand-offs spent per stage. Shows which stage to look at when "
      "the time to first token is high.");
  for (const std::string& stage : config.handoff_stages) {
    stages_[stage] = &stages.Add({{"stage", stage}}, metrics::RequestBuckets());
  }
  auto& failures = set_->Counters(
      "baton_handoff_failures_total",
      "Hand-offs that ended without a commit, by reason. handoff_rejected and "
      "mismatch are never load: look at the logs of both workers.");
  for (int32_t i = 0; i <= kLastReason; ++i) {
    const auto name =
        std::string(ErrorReasonName(static_cast<request::ErrorReason>(i)));
    failures_[name] = &failures.Add({{"reason", name}});
  }
  auto& bytes = set_->Counters(
      "baton_handoff_bytes_total",
      "Bytes of rows that crossed links, by component. Their sum over the "
      "hand-offs is what a prompt costs on the wire.");
  for (const kv::Component component : kv::AllComponents()) {
    bytes_[component] =
        &bytes.Add({{"component", std::string(kv::ComponentName(component))}});
  }
}

void WorkerMetrics::ObserveStep(int64_t tokens, absl::Duration duration) {
  step_seconds_.Observe(absl::ToDoubleSeconds(duration));
  step_tokens_.Observe(static_cast<double>(tokens));
  step_tokens_total_->Increment(static_cast<double>(tokens));
}

void WorkerMetrics::SetBlocks(const kv::BlockCounts& counts) {
  blocks_["free"]->Set(counts.free);
  blocks_["reserved_idle"]->Set(counts.reserved_idle);
  blocks_["active"]->Set(counts.active);
  blocks_["cached"]->Set(counts.cached);
  slots_["free"]->Set(counts.slots_free);
  slots_["used"]->Set(counts.slots_total - counts.slots_free);
}

void WorkerMetrics::SetOrphaned(int32_t orphaned) { orphaned_.Set(orphaned); }

void WorkerMetrics::SetSequences(absl::string_view state, int64_t count) {
  const auto it = sequences_.find(state);
  if (it == sequences_.end()) {
    ReportBug("worker_metrics.sequences", state);
    return;
  }
  it->second->Set(static_cast<double>(count));
}

void WorkerMetrics::ObserveStage(absl::string_view stage,
                                 absl::Duration duration) {
  const auto it = stages_.find(stage);
  if (it == stages_.end()) {
    ReportBug("worker_metrics.stage", stage);
    return;
  }
  it->second->Observe(absl::ToDoubleSeconds(duration));
}

void WorkerMetrics::ObserveCancelRelease(int64_t steps) {
  cancel_release_steps_.Observe(static_cast<double>(steps));
}

void WorkerMetrics::CountHandoffFailure(const absl::Status& status) {
  const auto it =
      failures_.find(ErrorReasonName(request::InfoOf(status).reason));
  if (it == failures_.end()) {
    ReportBug("worker_metrics.failure", status.ToString());
    return;
  }
  it->second->Increment();
}

void WorkerMetrics::SetHandoffBytes(kv::Component component, int64_t total) {
  prometheus::Counter& counter = *bytes_.at(component);
  counter.Increment(
      std::max(0.0, static_cast<double>(total) - counter.Value()));
}

void WorkerMetrics::SetLinksUp(int64_t links) {
  links_up_->Set(static_cast<double>(links));
}

void WorkerMetrics::SetRuntime(WorkerRuntime* runtime) {
  auto& memory = set_->Gauges(
      "baton_device_memory_bytes",
      "The memory plan by use, as computed at start. Headroom near 0 leaves no "
      "room for more blocks.");
  for (const auto& [use, bytes] : runtime->memory_plan().Uses()) {
    memory.Add({{"use", use}}).Set(static_cast<double>(bytes));
  }
  set_->Gauges("baton_compute_policy_info",
               "How cached state and logits are computed; always 1. Compare "
               "workers when their answers differ.")
      .Add({{"policy", runtime->model()->policy().ToString()}})
      .Set(1);
  auto& paths = set_->Gauges(
      "baton_kernel_path_info",
      "Code path that each operation really takes; always 1. A path that you "
      "did not expect explains a slow worker.");
  for (const std::string& line : runtime->model()->KernelPaths()) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 4) {
      ReportBug("worker_metrics.kernel_path", line);
      continue;
    }
    paths
        .Add({{"op", fields[0]},
              {"phase", fields[1]},
              {"arch", fields[2]},
              {"path", fields[3]}})
        .Set(1);
  }
}

}  // namespace baton::worker
