// Closed-loop load for `baton bench` and the integration tests: `streams`
// clients, each sending its next request when the last one has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cli/client.h"

namespace baton::cli {

struct LoadOptions {
  std::string address = kDefaultAddress;
  int32_t streams = 1;
  int32_t requests = 8;  // over all streams
  int32_t prompt_tokens = 200;
  int32_t output_tokens = 64;
  uint64_t seed = 1;  // of the prompts
  absl::Duration timeout = absl::Minutes(5);
};

// Client-side numbers. Latencies are sorted, in seconds.
struct LoadResult {
  int64_t completed = 0;
  std::vector<std::pair<std::string, int64_t>> errors;  // by Describe text
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double seconds = 0;
  // Request sent to the first delta.
  std::vector<double> ttft;
  // Between consecutive output tokens of a sample; tokens that arrive in one
  // message count one gap and then zeros.
  std::vector<double> itl;
};

// Unavailable when the router does not answer at all.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options);

// q in [0, 1] of sorted values; 0 for none.
double Quantile(const std::vector<double>& sorted, double q);

}  // namespace baton::cli
