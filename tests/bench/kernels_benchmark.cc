// Speed of the CPU operations at the shapes of the demo model. Run by hand:
//   kernels_benchmark [--benchmark_filter=Linear]
// bytes_per_second counts stored weight (or row) bytes; items are
// multiplications times two (FLOP). Stream gives the same machine's speed of
// reading memory once, the yardstick of a decode step.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/include/experts.h"
#include "kernels/include/hyper_connection.h"
#include "kernels/include/indexer.h"
#include "kernels/include/sparse_attention.h"
#include "tests/kernels/weight_testing.h"

namespace baton::kernels {
namespace {

void SetRates(benchmark::State& state, int64_t bytes, int64_t multiplies) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(multiplies),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// Reads 256 MiB, more than any cache.
void BM_Stream(benchmark::State& state) {
  const std::vector<uint64_t> data(32u << 20, 1);
  for (auto _ : state) {
    uint64_t sum[8] = {};
    for (size_t i = 0; i < data.size(); i += 8) {
      for (size_t j = 0; j < 8; ++j) {
        sum[j] += data[i + j];
      }
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(data.size() * 8));
}
BENCHMARK(BM_Stream)->Unit(benchmark::kMillisecond);

// Arguments: encoding, tokens, rows, cols. Enough copies of the weight to fall
// out of the cache: a decode step touches each weight once.
void BM_Linear(benchmark::State& state) {
  const auto encoding = static_cast<WeightEncoding>(state.range(0));
  const auto tokens = static_cast<int32_t>(state.range(1));
  const auto rows = static_cast<int32_t>(state.range(2));
  const auto cols = static_cast<int32_t>(state.range(3));
  std::vector<TestWeight> weights;
  int64_t total = 0;
  for (uint32_t i = 0; total < (64 << 20) && i < 64; ++i) {
    weights.push_back(MakeWeight(encoding, rows, cols, i));
    total += LinearWeightBytes(weights.back().weight);
  }
  const auto x = RandomFloats(static_cast<size_t>(tokens * cols), 1);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  SerialParallel serial;
  size_t next = 0;
  for (auto _ : state) {
    LinearParams params{
        x.data(), cols, y.data(), rows, tokens, weights[next].weight, 1, 0};
    LinearCpu(params, serial);
    next = (next + 1) % weights.size();
    benchmark::DoNotOptimize(y.data());
  }
  SetRates(state, LinearWeightBytes(weights[0].weight),
           int64_t{tokens} * rows * cols);
  state.SetLabel(EncodingName(encoding));
}
void LinearArguments(benchmark::internal::Benchmark* b) {
  for (const WeightEncoding e : kAllEncodings) {
    for (const int64_t tokens : {1, 4, 128}) {
      b->Args({static_cast<int64_t>(e), tokens, 1024, 1024});
    }
    b->Args({static_cast<int64_t>(e), 1, 4096, 128});  // the demo's wq_b
    b->Args({static_cast<int64_t>(e), 1, 256, 256});   // the demo's wo_b
  }
}
BENCHMARK(BM_Linear)->Apply(LinearArguments);

// Arguments: encoding, rows per query, tokens. 8 heads of 512.
void BM_Attention(benchmark::State& state) {
  const auto encoding = static_cast<RowEncoding>(state.range(0));
  const int64_t count = state.range(1);
  const auto tokens = static_cast<int32_t>(state.range(2));
  const auto values = RandomFloats(static_cast<size_t>(count) * 512, 1);
  std::vector<unsigned char> rows(values.size() * 4);
  std::vector<const void*> pointers;
  std::vector<int64_t> begin;
  for (int64_t r = 0; r < count; ++r) {
    EncodeRow(values.data() + r * 512, 512, encoding,
              rows.data() + r * 512 * BytesPerValue(encoding));
  }
  for (int32_t t = 0; t < tokens; ++t) {
    begin.push_back(static_cast<int64_t>(pointers.size()));
    for (int64_t r = 0; r < count; ++r) {
      pointers.push_back(rows.data() + r * 512 * BytesPerValue(encoding));
    }
  }
  begin.push_back(static_cast<int64_t>(pointers.size()));
  const auto q = RandomFloats(static_cast<size_t>(tokens) * 8 * 512, 2);
  std::vector<float> out(q.size());
  const std::vector<float> sink(8, 0.0f);
  SerialParallel serial;
  for (auto _ : state) {
    SparseAttentionParams p;
    p.q = q.data();
    p.out = out.data();
    p.q_token_stride = p.out_token_stride = 8 * 512;
    p.q_head_stride = p.out_head_stride = 512;
    p.rows = pointers.data();
    p.row_begin = begin.data();
    p.encoding = encoding;
    p.sink = sink.data();
    p.tokens = tokens;
    p.heads = 8;
    p.dim = 512;
    p.scale = 0.044f;
    SparseAttentionCpu(p, serial);
    benchmark::DoNotOptimize(out.data());
  }
  SetRates(state, tokens * count * 512 * BytesPerValue(encoding),
           tokens * count * 8 * 512 * 2);
}
BENCHMARK(BM_Attention)
    ->Args({0, 192, 1})
    ->Args({1, 192, 1})
    ->Args({0, 192, 128});

// Arguments: visible rows. 8 heads of 128, fp32 rows, top 64.
void BM_Indexer(benchmark::State& state) {
  const int64_t count = state.range(0);
  auto rows = RandomFloats(static_cast<size_t>(count) * 128, 1);
  const auto q = RandomFloats(8 * 128, 2);
  const auto weights = RandomFloats(8, 3);
  std::vector<float> scores(static_cast<size_t>(count));
  std::vector<int32_t> selected(64);
  IndexerQuery query;
  query.q = q.data();
  query.weights = weights.data();
  query.rows = {rows.data(), 0, 512, nullptr, static_cast<int32_t>(count)};
  query.visible_rows = count;
  query.scores = scores.data();
  query.selected = selected.data();
  IndexerParams p{&query, 1, 128, 8, 128, 64, RowEncoding::kF32};
  SerialParallel serial;
  for (auto _ : state) {
    IndexerCpu(p, serial);
    benchmark::DoNotOptimize(selected.data());
  }
  SetRates(state, count * 512, count * 8 * 128);
}
BENCHMARK(BM_Indexer)->Arg(512)->Arg(8192);

// Arguments: tokens. The demo: 16 NVFP4 experts of 64, top 4, FP8 shared.
void BM_Experts(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const int32_t dim = 256;
  const int32_t hidden = 64;
  std::vector<TestWeight> store;
  std::vector<ExpertWeights> experts;
  const auto make = [&](WeightEncoding e, uint32_t seed) {
    ExpertWeights w;
    store.push_back(MakeWeight(e, hidden, dim, seed));
    w.w1 = store.back().weight;
    store.push_back(MakeWeight(e, dim, hidden, seed + 1));
    w.w2 = store.back().weight;
    store.push_back(MakeWeight(e, hidden, dim, seed + 2));
    w.w3 = store.back().weight;
    return w;
  };
  store.reserve(64);
  for (uint32_t e = 0; e < 16; ++e) {
    experts.push_back(make(WeightEncoding::kNvfp4, 3 * e));
  }
  const ExpertWeights shared = make(WeightEncoding::kFp8BlockE8m0, 99);
  const auto x = RandomFloats(static_cast<size_t>(tokens * dim), 1);
  std::vector<float> y(x.size());
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < tokens * 4; ++i) {
    ids.push_back((i * 7) % 16);
  }
  const std::vector<float> weights(ids.size(), 0.3f);
  std::vector<unsigned char> workspace(
      static_cast<size_t>(ExpertsWorkspaceBytes({tokens, 4, 16, dim, hidden})));
  ExpertsParams p;
  p.x = x.data();
  p.x_row_stride = dim;
  p.expert_ids = ids.data();
  p.expert_weights = weights.data();
  p.experts = experts.data();
  p.shared = &shared;
  p.tokens = tokens;
  p.top_k = 4;
  p.num_experts = 16;
  p.dim = dim;
  p.hidden = hidden;
  p.limit = 10.0f;
  p.y = y.data();
  p.y_row_stride = dim;
  p.workspace = workspace.data();
  SerialParallel serial;
  for (auto _ : state) {
    ExpertsCpu(p, serial);
    benchmark::DoNotOptimize(y.data());
  }
  const int64_t used = std::min(4 * tokens, 16);
  SetRates(state,
           used * 3 * LinearWeightBytes(experts[0].w1) +
               3 * LinearWeightBytes(shared.w1),
           int64_t{tokens} * 5 * 3 * dim * hidden);
}
BENCHMARK(BM_Experts)->Arg(1)->Arg(128);

// Arguments: tokens. Pre and post of the demo (4 streams of 256).
void BM_HyperConnection(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const int32_t dim = 256;
  auto streams = RandomFloats(static_cast<size_t>(tokens) * 4 * dim, 1);
  const auto fn = RandomFloats(24 * 4 * dim, 2, 0.03f);
  const auto base = RandomFloats(24, 3);
  const std::vector<float> scale = {0.5f, 0.25f, 1.0f};
  const auto n = static_cast<size_t>(tokens);
  std::vector<float> mixed(n * dim), pre(n * 4), post(n * 4), comb(n * 16);
  std::vector<float> workspace(
      static_cast<size_t>(HyperWorkspaceFloats(tokens, 4)));
  std::vector<float> out(streams.size());
  SerialParallel serial;
  for (auto _ : state) {
    HyperPreParams p;
    p.streams = streams.data();
    p.token_stride = 4 * dim;
    p.fn = fn.data();
    p.scale = scale.data();
    p.base = base.data();
    p.tokens = tokens;
    p.dim = dim;
    p.mixed = mixed.data();
    p.mixed_row_stride = dim;
    p.pre = pre.data();
    p.post = post.data();
    p.comb = comb.data();
    p.workspace = workspace.data();
    HyperPreCpu(p, serial);
    HyperPostParams q;
    q.y = mixed.data();
    q.y_row_stride = dim;
    q.streams = streams.data();
    q.token_stride = 4 * dim;
    q.post = post.data();
    q.comb = comb.data();
    q.out = out.data();
    q.out_token_stride = 4 * dim;
    q.tokens = tokens;
    q.dim = dim;
    HyperPostCpu(q, serial);
    benchmark::DoNotOptimize(out.data());
  }
  SetRates(state, 24 * 4 * dim * 4, int64_t{tokens} * 24 * 4 * dim);
}
BENCHMARK(BM_HyperConnection)->Arg(1)->Arg(128);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
