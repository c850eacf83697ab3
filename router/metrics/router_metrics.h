// The router's metric set (design.md 9). Label sets are resolved here, once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "router/registry/registry.h"

namespace baton::router::metrics {

// Why a request went to another worker than first chosen.
enum class RetryReason : uint8_t {
  kPrefillRefused,
  kDecodeRefused,
  kPrefillLost,
  kDecodeLost,
  kHandoffFailed,
};
absl::string_view RetryReasonName(RetryReason reason);

// "ok" or the name of the status's ErrorReason; a status without one gives the
// reason nearest to its code.
absl::string_view OutcomeOf(const absl::Status& status);

// Thread-safe.
class RouterMetrics final {
 public:
  explicit RouterMetrics(baton::metrics::MetricSet* set);

  // One per request, when its call has ended.
  void RequestEnded(const absl::Status& status, absl::Duration duration);
  void Queued(absl::Duration queue);
  void FirstToken(absl::Duration ttft);
  // `tokens` came `gap` after the sample's previous ones.
  void LaterTokens(absl::Duration gap, int32_t tokens);
  void PromptTokens(int64_t tokens);
  void GenerationTokens(int64_t tokens);
  void Retry(RetryReason reason);

  // Gauges that are read when scraped. Both outlive the metric set.
  struct Sources {
    const registry::Registry* registry = nullptr;
    std::function<int64_t()> running;
    std::function<int64_t()> waiting;
  };
  static void ExportGauges(baton::metrics::MetricSet* set, Sources sources);

 private:
  static constexpr size_t kOutcomes = 17;  // ok and each ErrorReason
  std::array<prometheus::Counter*, kOutcomes> requests_{};
  std::array<prometheus::Counter*, 5> retries_{};
  prometheus::Histogram* queue_seconds_;
  prometheus::Histogram* first_token_seconds_;
  prometheus::Histogram* inter_token_seconds_;
  prometheus::Histogram* duration_seconds_;
  prometheus::Counter* prompt_tokens_;
  prometheus::Counter* generation_tokens_;
};

}  // namespace baton::router::metrics
