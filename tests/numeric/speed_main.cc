// Speed of the model on this machine: prefill tokens/s, decode step time at
// several batch sizes, and the time of reading one step's weight bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/check.h"
#include "tests/numeric/oracle_support.h"

namespace baton::numeric {
namespace {

using Clock = std::chrono::steady_clock;
using model::LogitsWanted;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Processor time of all threads: what a step costs when others use the machine.
double CpuSeconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads `bytes` of fresh memory with all threads; a different part of a buffer
// larger than the caches each time.
double StreamSeconds(int64_t bytes, int32_t threads) {
  device::ThreadPool pool(threads);
  constexpr int64_t kBuffer = int64_t{512} << 20;
  std::vector<uint64_t> buffer(kBuffer / 8, 1);
  const int64_t words = bytes / 8;
  std::vector<double> times;
  std::atomic<uint64_t> sink{0};
  for (int64_t begin = 0; begin + words <= kBuffer / 8 && times.size() < 24;
       begin += words) {
    const auto start = Clock::now();
    pool.For(threads, [&](int64_t b, int64_t e) {
      for (int64_t part = b; part < e; ++part) {
        const uint64_t* const p =
            buffer.data() + begin + words * part / threads;
        const int64_t n = words / threads;
        uint64_t sums[8] = {};
        for (int64_t i = 0; i + 8 <= n; i += 8) {
          for (int j = 0; j < 8; ++j) sums[j] += p[i + j];
        }
        for (const uint64_t sum : sums) sink += sum;
      }
    });
    times.push_back(Seconds(start));
  }
  CHECK(sink.load() > 0);
  return Median(times);
}

int Main(const RigOptions& options) {
  auto rig = Rig::Create(options).value();
  const Golden golden(options.checkpoint);
  const auto last = golden.Count("prompt") - 1;
  auto ids = golden.Ints("prompt." + std::to_string(last) + ".ids");
  const auto n = static_cast<int64_t>(ids.size());
  const int64_t bytes = rig->model().decode_weight_bytes();
  const double stream = StreamSeconds(bytes, options.threads);
  std::printf(
      "weights %.1f MB, per decode step %.2f MB, read once in %.3f ms\n",
      1e-6 * static_cast<double>(rig->model().weight_bytes()),
      1e-6 * static_cast<double>(bytes), 1e3 * stream);
  for (const int64_t chunk : {128, 256, 512}) {
    auto sequence = rig->NewSequence(n);
    const double cpu = CpuSeconds();
    const auto start = Clock::now();
    CHECK_OK(rig->Feed(&sequence, ids, chunk, LogitsWanted::kLast));
    const double seconds = Seconds(start);
    std::printf(
        "prefill %lld tokens, chunks of %lld: %.0f tokens/s, cpu %.3f ms per "
        "token\n",
        static_cast<long long>(n), static_cast<long long>(chunk),
        static_cast<double>(n) / seconds,
        1e3 * (CpuSeconds() - cpu) / static_cast<double>(n));
    rig->Release(sequence);
  }
  for (const int64_t context : {int64_t{64}, int64_t{512}, n - 64}) {
    for (const size_t batch : {1, 2, 4, 8, 16, 32}) {
      std::vector<Rig::Sequence> sequences;
      for (size_t i = 0; i < batch; ++i) {
        sequences.push_back(rig->NewSequence(context + 64));
        CHECK_OK(rig->Feed(
            &sequences.back(),
            absl::MakeConstSpan(ids).first(static_cast<size_t>(context)), 512,
            LogitsWanted::kNone));
      }
      std::vector<double> times;
      const double cpu = CpuSeconds();
      std::vector<float> logits;
      for (int step = 0; step < 64; ++step) {
        std::vector<model::Span> spans;
        for (size_t i = 0; i < batch; ++i) {
          const auto at = static_cast<size_t>(step) * 7 + i;
          spans.push_back({.sequence = sequences[i].state.view(),
                           .first_position = sequences[i].state.processed,
                           .tokens = absl::MakeConstSpan(ids).subspan(at, 1),
                           .logits = LogitsWanted::kLast});
        }
        const auto start = Clock::now();
        const auto inputs = rig->model().Plan(spans).value();
        CHECK_OK(rig->model().Run(inputs, &rig->store(), &logits));
        times.push_back(Seconds(start));
        for (auto& sequence : sequences) sequence.state.Commit(1);
      }
      const double step = Median(times);
      std::printf(
          "decode at %4lld, batch %2zu: %.3f ms, least %.3f, cpu %.3f (%.2fx "
          "one read of "
          "the weights), %.0f tokens/s\n",
          static_cast<long long>(context), batch, 1e3 * step,
          1e3 * *std::min_element(times.begin(), times.end()),
          1e3 * (CpuSeconds() - cpu) / 64, step / stream,
          static_cast<double>(batch) / step);
      for (const auto& sequence : sequences) rig->Release(sequence);
    }
  }
  return 0;
}

}  // namespace
}  // namespace baton::numeric

int main(int argc, char** argv) {
  baton::numeric::RigOptions options{.num_blocks = 300, .num_slots = 32};
  CLI::App app("Speed of the model in one process");
  app.add_option("--checkpoint", options.checkpoint, "demo or random");
  app.add_option("--format", options.format, "f32 or bf16");
  app.add_option("--threads", options.threads, "threads in all");
  CLI11_PARSE(app, argc, argv);
  return baton::numeric::Main(options);
}
