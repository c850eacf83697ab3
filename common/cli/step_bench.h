// `baton bench step`: how far a decode step is from the memory's speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton::cli {

struct StepBenchOptions {
  std::string model;
  int32_t threads = 2;
  int32_t context_tokens = 512;
  int32_t steps = 100;
  std::vector<int32_t> batches = {1, 8, 32};
};

// Prints memory bandwidth, weight bytes of one step, the time to read them once
// and the step times per batch size, all from this run. Exit code 0, or 1 when
// the model does not load.
int RunStepBench(const StepBenchOptions& options);

}  // namespace baton::cli
