#include "router/metrics/router_metrics.h"

#include <string>
#include <utility>

#include "common/request/request.h"

namespace baton::router::metrics {
namespace {

using baton::metrics::MetricSet;
using request::ErrorReason;

// Index 0 is "ok", index r + 1 the ErrorReason r.
size_t OutcomeIndex(const absl::Status& status) {
  if (status.ok()) return 0;
  ErrorReason reason = request::InfoOf(status).reason;
  if (reason == ErrorReason::kUnspecified) {
    switch (status.code()) {
      case absl::StatusCode::kInvalidArgument:
        reason = ErrorReason::kInvalidField;
        break;
      case absl::StatusCode::kResourceExhausted:
        reason = ErrorReason::kOverloaded;
        break;
      case absl::StatusCode::kCancelled:
        reason = ErrorReason::kCancelled;
        break;
      case absl::StatusCode::kDeadlineExceeded:
        reason = ErrorReason::kDeadline;
        break;
      case absl::StatusCode::kUnavailable:
        reason = ErrorReason::kWorkerLost;
        break;
      default:
        break;
    }
  }
  return static_cast<size_t>(reason) + 1;
}

absl::string_view StateName(registry::WorkerState state) {
  switch (state) {
    case registry::WorkerState::kLoading:
      return "loading";
    case registry::WorkerState::kServing:
      return "serving";
    case registry::WorkerState::kDraining:
      return "draining";
    case registry::WorkerState::kStalled:
      return "stalled";
    case registry::WorkerState::kLost:
      return "lost";
  }
  return "lost";
}

constexpr std::array<registry::WorkerState, 5> kStates = {
    registry::WorkerState::kLoading, registry::WorkerState::kServing,
    registry::WorkerState::kDraining, registry::WorkerState::kStalled,
    registry::WorkerState::kLost};

}  // namespace

absl::string_view RetryReasonName(RetryReason reason) {
  switch (reason) {
    case RetryReason::kPrefillRefused:
      return "prefill_refused";
    case RetryReason::kDecodeRefused:
      return "decode_refused";
    case RetryReason::kPrefillLost:
      return "prefill_lost";
    case RetryReason::kDecodeLost:
      return "decode_lost";
    case RetryReason::kHandoffFailed:
      return "handoff_failed";
  }
  return "prefill_lost";
}

absl::string_view OutcomeOf(const absl::Status& status) {
  const size_t index = OutcomeIndex(status);
  if (index == 0) return "ok";
  return request::ErrorReasonName(static_cast<ErrorReason>(index - 1));
}

RouterMetrics::RouterMetrics(MetricSet* set) {
  auto& requests = set->Counters(
      "baton_requests_total",
      "Generate calls that ended, by outcome: ok or the reason of the error. "
      "Alert on worker_lost, handoff_rejected and bug; a rising share of "
      "overloaded asks for more workers.");
  for (size_t i = 0; i < kOutcomes; ++i) {
    const absl::string_view name =
        i == 0 ? "ok"
               : request::ErrorReasonName(static_cast<ErrorReason>(i - 1));
    requests_[i] = &requests.Add({{"outcome", std::string(name)}});
  }
  auto& retries = set->Counters(
      "baton_retries_total",
      "Times a request went to another worker, by reason. *_lost and "
      "handoff_failed are faults to look into; *_refused is a full cluster.");
  for (size_t i = 0; i < retries_.size(); ++i) {
    retries_[i] = &retries.Add({{"reason", std::string(RetryReasonName(
                                               static_cast<RetryReason>(i)))}});
  }
  queue_seconds_ = &set->Histogram(
      "baton_request_queue_seconds",
      "From acceptance by the router until a prefill worker admitted the "
      "prompt. Growth means that prefill or decode capacity is short.",
      baton::metrics::RequestBuckets());
  first_token_seconds_ = &set->Histogram(
      "baton_time_to_first_token_seconds",
      "From acceptance by the router, queueing included, to the first output "
      "token; only requests that had one. Compare with the queue time to see "
      "whether waiting or computing is slow.",
      baton::metrics::RequestBuckets());
  inter_token_seconds_ = &set->Histogram(
      "baton_inter_token_latency_seconds",
      "Gap between consecutive output tokens of a sample as they reach the "
      "router. A high tail points at overloaded decode workers or at clients "
      "that read slowly.",
      baton::metrics::TokenBuckets());
  duration_seconds_ = &set->Histogram(
      "baton_request_duration_seconds",
      "From acceptance to the end of the call, whatever its outcome.",
      baton::metrics::RequestBuckets());
  prompt_tokens_ = &set->Counter(
      "baton_prompt_tokens_total",
      "Prompt tokens of requests that the cluster accepted. Its rate is the "
      "prefill demand.");
  generation_tokens_ = &set->Counter(
      "baton_generation_tokens_total",
      "Output tokens that reached the router. Its rate is the throughput.");
}

void RouterMetrics::RequestEnded(const absl::Status& status,
                                 absl::Duration duration) {
  requests_[OutcomeIndex(status)]->Increment();
  duration_seconds_->Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::Queued(absl::Duration queue) {
  queue_seconds_->Observe(absl::ToDoubleSeconds(queue));
}

void RouterMetrics::FirstToken(absl::Duration ttft) {
  first_token_seconds_->Observe(absl::ToDoubleSeconds(ttft));
}

void RouterMetrics::LaterTokens(absl::Duration gap, int32_t tokens) {
  const double each = absl::ToDoubleSeconds(gap) / tokens;
  for (int32_t i = 0; i < tokens; ++i) inter_token_seconds_->Observe(each);
}

void RouterMetrics::PromptTokens(int64_t tokens) {
  prompt_tokens_->Increment(static_cast<double>(tokens));
}

void RouterMetrics::GenerationTokens(int64_t tokens) {
  generation_tokens_->Increment(static_cast<double>(tokens));
}

void RouterMetrics::Retry(RetryReason reason) {
  retries_[static_cast<size_t>(reason)]->Increment();
}

void RouterMetrics::ExportGauges(MetricSet* set, Sources sources) {
  struct Gauges {
    std::array<prometheus::Gauge*, kStates.size()> prefill{};
    std::array<prometheus::Gauge*, kStates.size()> decode{};
    prometheus::Gauge* running = nullptr;
    prometheus::Gauge* waiting = nullptr;
    prometheus::Gauge* mismatches = nullptr;
  };
  Gauges gauges;
  auto& workers = set->Gauges(
      "baton_workers",
      "Known workers by role and state as this router judges it. A worker "
      "that is lost or stalled takes no new requests.");
  for (size_t i = 0; i < kStates.size(); ++i) {
    const std::string state(StateName(kStates[i]));
    gauges.prefill[i] = &workers.Add({{"role", "prefill"}, {"state", state}});
    gauges.decode[i] = &workers.Add({{"role", "decode"}, {"state", state}});
  }
  auto& in_flight = set->Gauges(
      "baton_requests_in_flight",
      "Requests of this router now: running on workers or waiting for room. "
      "Must return to 0 when no client is there.");
  gauges.running = &in_flight.Add({{"state", "running"}});
  gauges.waiting = &in_flight.Add({{"state", "waiting"}});
  gauges.mismatches = &set->Gauge(
      "baton_worker_mismatches",
      "Registrations refused since the start because the worker has another "
      "model or StateFormat. Any value above 0 is a deployment error.");
  set->OnScrape([gauges, sources = std::move(sources)] {
    std::array<int, kStates.size()> prefill{};
    std::array<int, kStates.size()> decode{};
    for (const registry::WorkerView& worker : *sources.registry->snapshot()) {
      const auto state = static_cast<size_t>(worker.state);
      if (worker.identity->prefill) ++prefill[state];
      if (worker.identity->decode) ++decode[state];
    }
    for (size_t i = 0; i < kStates.size(); ++i) {
      gauges.prefill[i]->Set(prefill[i]);
      gauges.decode[i]->Set(decode[i]);
    }
    gauges.running->Set(static_cast<double>(sources.running()));
    gauges.waiting->Set(static_cast<double>(sources.waiting()));
    gauges.mismatches->Set(static_cast<double>(sources.registry->mismatches()));
  });
}

}  // namespace baton::router::metrics
