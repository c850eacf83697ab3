// Speed of encoding, incremental decoding and stop matching with the tokenizer
// of the real model. Each benchmark checks its result once.

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/tokenizer/incremental_decoder.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::RealTokenizer;

// English, code, numbers and CJK, repeated to about `bytes`.
std::string MixedText(size_t bytes) {
  const std::string paragraph =
      "The quick brown fox jumps over the lazy dog; it isn't 12345 times "
      "faster.\n\nfor (int i = 0; i < n; ++i) { sum += values[i]; }\n"
      "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82"
      " "
      "Donaudampfschifffahrt na\xC3\xAFve \xF0\x9F\x98\x80\n";
  std::string out;
  while (out.size() < bytes) out += paragraph;
  return out;
}

void SetRates(benchmark::State& state, size_t bytes, size_t tokens) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(tokens));
}

void BM_EncodeMixedText(benchmark::State& state) {
  const std::string text = MixedText(static_cast<size_t>(state.range(0)));
  size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = RealTokenizer().Encode(text, AddedTokens::kIgnore);
    CHECK_OK(ids);
    tokens = ids->size();
    benchmark::DoNotOptimize(ids->data());
  }
  SetRates(state, text.size(), tokens);
}
BENCHMARK(BM_EncodeMixedText)->Arg(1 << 8)->Arg(1 << 13)->Arg(1 << 20);

// One piece: shows that long words cost n log n.
void BM_EncodeOneWord(benchmark::State& state) {
  std::string text;
  while (text.size() < static_cast<size_t>(state.range(0))) text += "Donau";
  size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = RealTokenizer().Encode(text, AddedTokens::kIgnore);
    CHECK_OK(ids);
    tokens = ids->size();
    benchmark::DoNotOptimize(ids->data());
  }
  SetRates(state, text.size(), tokens);
}
BENCHMARK(BM_EncodeOneWord)->Arg(1 << 12)->Arg(1 << 16)->Arg(1 << 20);

void BM_DecodeIncrementally(benchmark::State& state) {
  const std::string text = MixedText(1 << 13);
  const auto ids = RealTokenizer().Encode(text, AddedTokens::kIgnore);
  CHECK_OK(ids);
  for (auto _ : state) {
    IncrementalDecoder decoder(&RealTokenizer(), {});
    size_t bytes = 0;
    for (const int32_t id : *ids) bytes += decoder.Append(id)->size();
    bytes += decoder.Flush().size();
    CHECK_EQ(bytes, text.size());
  }
  SetRates(state, text.size(), ids->size());
}
BENCHMARK(BM_DecodeIncrementally);

void BM_MatchStopStrings(benchmark::State& state) {
  std::vector<std::string> stops;
  for (int64_t i = 0; i < state.range(0); ++i) {
    stops.push_back(absl::StrCat("The quick brown fox number ", i));
  }
  const auto set = StopSet::Create(stops);
  CHECK_OK(set);
  const std::string text = MixedText(1 << 16);
  for (auto _ : state) {
    StopMatcher matcher(*set);
    CHECK(!matcher.Push(text).has_value());
    benchmark::DoNotOptimize(matcher.safe_bytes());
  }
  SetRates(state, text.size(), 0);
}
BENCHMARK(BM_MatchStopStrings)->Arg(0)->Arg(1)->Arg(100)->Arg(10000);

void BM_BuildStopSet(benchmark::State& state) {
  std::vector<std::string> stops;
  for (int64_t i = 0; i < state.range(0); ++i) {
    stops.push_back(absl::StrCat("The quick brown fox number ", i));
  }
  for (auto _ : state) {
    const auto set = StopSet::Create(stops);
    CHECK_OK(set);
    benchmark::DoNotOptimize(set->get());
  }
}
BENCHMARK(BM_BuildStopSet)->Arg(4)->Arg(10000);

}  // namespace
}  // namespace baton::tokenizer

BENCHMARK_MAIN();
