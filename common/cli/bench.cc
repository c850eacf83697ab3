// `baton bench`: load through the public API, and the step of one process
// against the memory's speed.

#include <cstdio>

#include "common/cli/client.h"
#include "common/cli/commands.h"
#include "common/cli/load.h"
#include "common/cli/step_bench.h"

namespace baton::cli {
namespace {

struct Options {
  LoadOptions load;
  std::vector<int32_t> streams = {1, 8, 32};
  int32_t requests_per_stream = 4;
};

int RunBench(const Options& o) {
  std::printf("prompt %d tokens, output %d tokens, %d requests per stream\n",
              o.load.prompt_tokens, o.load.output_tokens,
              o.requests_per_stream);
  std::printf("%8s %9s %10s %10s %9s %9s %9s %11s %11s\n", "streams",
              "requests", "TTFT p50", "TTFT p99", "ITL p50", "ITL p90",
              "ITL p99", "out tok/s", "in tok/s");
  bool failed = false;
  for (const int32_t streams : o.streams) {
    LoadOptions load = o.load;
    load.streams = streams;
    load.requests = streams * o.requests_per_stream;
    const auto result = RunLoad(load);
    if (!result.ok()) {
      std::fprintf(stderr, "baton bench: %s\n",
                   Describe(result.status()).c_str());
      return 1;
    }
    std::printf(
        "%8d %9lld %7.1f ms %7.1f ms %6.2f ms %6.2f ms %6.2f ms %11.1f "
        "%11.1f\n",
        streams, static_cast<long long>(result->completed),
        Quantile(result->ttft, 0.5) * 1e3, Quantile(result->ttft, 0.99) * 1e3,
        Quantile(result->itl, 0.5) * 1e3, Quantile(result->itl, 0.9) * 1e3,
        Quantile(result->itl, 0.99) * 1e3,
        static_cast<double>(result->output_tokens) / result->seconds,
        static_cast<double>(result->prompt_tokens) / result->seconds);
    for (const auto& [text, count] : result->errors) {
      failed = true;
      std::printf("         %lld x %s\n", static_cast<long long>(count),
                  text.c_str());
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

Run AddBench(CLI::App& app) {
  auto* command = app.add_subcommand(
      "bench", "Measures TTFT, ITL and tokens/s of a running cluster.");
  const auto o = std::make_shared<Options>();
  command->add_option("--address", o->load.address, "router")
      ->capture_default_str();
  command->add_option("--streams", o->streams, "numbers of parallel streams")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--requests-per-stream", o->requests_per_stream, "")
      ->capture_default_str();
  command->add_option("--prompt-tokens", o->load.prompt_tokens, "")
      ->capture_default_str();
  command->add_option("--output-tokens", o->load.output_tokens, "")
      ->capture_default_str();
  command->add_option("--seed", o->load.seed, "of the random prompts")
      ->capture_default_str();
  auto* step = command->add_subcommand(
      "step",
      "Times decode steps of one process against reading the weights once.");
  const auto step_options = std::make_shared<StepBenchOptions>();
  step->add_option("--model", step_options->model, "checkpoint folder")
      ->required();
  step->add_option("--threads", step_options->threads, "")
      ->capture_default_str();
  step->add_option("--context", step_options->context_tokens,
                   "tokens before the timed steps")
      ->capture_default_str();
  step->add_option("--steps", step_options->steps, "timed steps")
      ->capture_default_str();
  step->add_option("--batch", step_options->batches, "batch sizes")
      ->delimiter(',')
      ->capture_default_str();
  return [o, step, step_options] {
    return step->parsed() ? RunStepBench(*step_options) : RunBench(*o);
  };
}

}  // namespace baton::cli
