#include "common/cli/step_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint.h"
#include "common/cli/client.h"
#include "common/device/thread_pool.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"

namespace baton::cli {
namespace {

// Far beyond any last-level cache, so that every pass comes from memory.
constexpr int64_t kStreamBytes = int64_t{1} << 30;

double SecondsOf(absl::Duration d) { return absl::ToDoubleSeconds(d); }

// Bytes per second of reading memory once with `threads` threads: best of five.
double MemoryBandwidth(int32_t threads) {
  std::vector<uint64_t> memory(kStreamBytes / sizeof(uint64_t), 1);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const absl::Time start = Clock::Real()->Now();
    {
      std::vector<Thread> workers;
      const size_t share = memory.size() / static_cast<size_t>(threads);
      for (int32_t t = 0; t < threads; ++t) {
        workers.emplace_back("stream", [&, t] {
          const uint64_t* p = memory.data() + static_cast<size_t>(t) * share;
          // Eight independent sums keep the loads, not the additions, the
          // limit.
          uint64_t s[8] = {};
          for (size_t i = 0; i + 8 <= share; i += 8) {
            for (size_t j = 0; j < 8; ++j) s[j] += p[i + j];
          }
          for (const uint64_t v : s) sums[static_cast<size_t>(t)] += v;
        });
      }
    }
    const double seconds = SecondsOf(Clock::Real()->Now() - start);
    uint64_t total = 0;
    for (const uint64_t v : sums) total += v;
    // Using the sum keeps the reads alive.
    if (total > 0) {
      best = std::max(best, static_cast<double>(kStreamBytes) / seconds);
    }
  }
  return best;
}

struct Sequence {
  model::SequenceState state;
  int32_t next_token = 0;
};

absl::Status Measure(const StepBenchOptions& o) {
  ASSIGN_OR_RETURN(const auto checkpoint,
                   checkpoint::Checkpoint::Open(o.model));
  device::ThreadPool pool(o.threads);
  model::ModelOptions options;
  ASSIGN_OR_RETURN(options.policy, model::ComputePolicyFromName("exact"));
  const kv::StateGeometry geometry =
      model::Model::GeometryOf(checkpoint->config());
  ASSIGN_OR_RETURN(options.format, kv::StateFormatFromName("f32", geometry));
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                   model::Model::Create(checkpoint.get(), options, &pool));

  const double bandwidth = MemoryBandwidth(o.threads);
  const double bytes = static_cast<double>(model->decode_weight_bytes());
  const double read_ms = bytes / bandwidth * 1e3;
  std::printf(
      "memory read %.1f GB/s with %d threads; weights of one step %.2f MB as "
      "stored: read once in %.3f ms\n",
      bandwidth / 1e9, o.threads, bytes / 1e6, read_ms);
  std::printf("%6s %8s %10s %10s %14s %11s\n", "batch", "context", "step p50",
              "step p99", "p50 / read", "tokens/s");

  SeededRandom random(7);
  for (const int32_t batch : o.batches) {
    const int32_t per_sequence = kv::BlocksFor(o.context_tokens + o.steps + 16);
    ASSIGN_OR_RETURN(
        const auto store,
        kv::KvStore::Create(options.format, per_sequence * batch, batch));
    kv::BlockPool blocks(per_sequence * batch, batch);
    std::vector<Sequence> sequences(static_cast<size_t>(batch));
    std::vector<float> logits;
    for (Sequence& s : sequences) {
      ASSIGN_OR_RETURN(auto holding,
                       blocks.Acquire(per_sequence, 1, kv::BlockUse::kActive));
      s.state.blocks = holding.blocks;
      s.state.slot = holding.slots.front();
      store->ResetSlot(s.state.slot);
      std::vector<int32_t> prompt(static_cast<size_t>(o.context_tokens));
      for (int32_t& id : prompt) {
        id = static_cast<int32_t>(random.Uint64() %
                                  static_cast<uint64_t>(model->vocab_size()));
      }
      for (size_t first = 0; first < prompt.size(); first += 256) {
        const size_t count = std::min<size_t>(256, prompt.size() - first);
        const model::Span span{
            .sequence = s.state.view(),
            .first_position = s.state.processed,
            .tokens = absl::MakeConstSpan(prompt).subspan(first, count),
            .logits = model::LogitsWanted::kLast};
        ASSIGN_OR_RETURN(const auto inputs, model->Plan({&span, 1}));
        RETURN_IF_ERROR(model->Run(inputs, store.get(), &logits));
        s.state.Commit(static_cast<int64_t>(count));
      }
      s.next_token = static_cast<int32_t>(
          std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    std::vector<double> times;
    // The first steps warm caches and are not counted.
    constexpr int32_t kWarmUp = 10;
    for (int32_t step = 0; step < o.steps + kWarmUp; ++step) {
      const absl::Time start = Clock::Real()->Now();
      std::vector<model::Span> spans;
      for (const Sequence& s : sequences) {
        spans.push_back({.sequence = s.state.view(),
                         .first_position = s.state.processed,
                         .tokens = absl::MakeConstSpan(&s.next_token, 1),
                         .logits = model::LogitsWanted::kLast});
      }
      ASSIGN_OR_RETURN(const auto inputs, model->Plan(spans));
      RETURN_IF_ERROR(model->Run(inputs, store.get(), &logits));
      const auto vocab = static_cast<ptrdiff_t>(model->vocab_size());
      for (size_t i = 0; i < sequences.size(); ++i) {
        const auto row = logits.begin() + static_cast<ptrdiff_t>(i) * vocab;
        sequences[i].state.Commit(1);
        sequences[i].next_token =
            static_cast<int32_t>(std::max_element(row, row + vocab) - row);
      }
      if (step >= kWarmUp) {
        times.push_back(SecondsOf(Clock::Real()->Now() - start) * 1e3);
      }
    }
    std::sort(times.begin(), times.end());
    const double p50 = times[times.size() / 2];
    const double p99 = times[times.size() * 99 / 100];
    std::printf("%6d %8d %7.3f ms %7.3f ms %13.2fx %11.1f\n", batch,
                o.context_tokens, p50, p99, p50 / read_ms,
                static_cast<double>(batch) / p50 * 1e3);
  }
  return absl::OkStatus();
}

}  // namespace

int RunStepBench(const StepBenchOptions& options) {
  const absl::Status status = Measure(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "baton bench step: %s\n", Describe(status).c_str());
  return 1;
}

}  // namespace baton::cli
