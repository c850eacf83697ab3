// Checks that nothing of a request's output is missing or doubled.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "router/dispatch/types.h"

namespace baton::router::dispatch {

// Counts the events of each sample. Used by one thread. Every error is INTERNAL
// kBug and names the sample and the numbers: a worker broke the protocol.
class OutputLedger final {
 public:
  // `samples` in 1 .. request::kMaxSamples.
  explicit OutputLedger(int32_t samples)
      : samples_(static_cast<size_t>(samples)) {}

  // The event's sequence must be the next of its sample.
  absl::Status CheckTokens(const DecodeTokens& tokens);
  // Totals must be those that were counted.
  absl::Status CheckFinished(const DecodeSampleFinished& finished);

  bool complete() const {
    return finished_ == static_cast<int32_t>(samples_.size());
  }
  int32_t num_finished() const { return finished_; }
  int32_t num_samples() const { return static_cast<int32_t>(samples_.size()); }
  // Over all samples.
  int64_t output_tokens() const { return output_tokens_; }

 private:
  struct Sample {
    int64_t events = 0;
    int64_t tokens = 0;
    bool finished = false;
  };
  absl::Status CheckIndex(int32_t index) const;

  std::vector<Sample> samples_;
  int32_t finished_ = 0;
  int64_t output_tokens_ = 0;
};

}  // namespace baton::router::dispatch
