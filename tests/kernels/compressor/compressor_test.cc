#include "kernels/include/compressor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

struct Shape {
  CompressorKind kind;
  int32_t ratio;
  int32_t dim;
};

// A prompt's inputs and a way to stream it in chunks.
struct Prompt {
  Shape shape;
  int32_t tokens;
  int64_t width;
  std::vector<float> kv, gate, ape;

  Prompt(const Shape& s, int32_t n)
      : shape(s), tokens(n), width(CompressorWidth(s.kind, s.dim)) {
    const auto values = static_cast<size_t>(n * width);
    kv = RandomFloats(values, 1);
    gate = RandomFloats(values, 2, 3.0f);
    ape = RandomFloats(static_cast<size_t>(s.ratio * width), 3);
  }

  CompressorParams Params(const CompressorSpan* spans, int32_t count) const {
    return {shape.kind, shape.ratio, shape.dim, ape.data(), spans, count};
  }

  CompressorSpan Span(int64_t first, int64_t count, float* state,
                      float* pooled) const {
    CompressorSpan span;
    span.kv = kv.data() + first * width;
    span.kv_row_stride = width;
    span.gate = gate.data() + first * width;
    span.gate_row_stride = width;
    span.first_position = first;
    span.num_tokens = static_cast<int32_t>(count);
    span.state = state;
    span.pooled = pooled;
    span.pooled_row_stride = shape.dim;
    return span;
  }

  // A fresh state is full of NaN: nothing unwritten may be read.
  std::vector<float> FreshState() const {
    return std::vector<float>(static_cast<size_t>(CompressorStateFloats(
                                  shape.kind, shape.ratio, shape.dim)),
                              kNan);
  }

  template <typename Run>
  std::vector<float> Stream(int64_t chunk, const Run& run) const {
    std::vector<float> pooled(
        static_cast<size_t>(tokens / shape.ratio * shape.dim), kNan);
    std::vector<float> state = FreshState();
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t count = std::min<int64_t>(chunk, tokens - first);
      const CompressorSpan span =
          Span(first, count, state.data(),
               pooled.data() + first / shape.ratio * shape.dim);
      run(Params(&span, 1));
    }
    return pooled;
  }

  std::vector<float> OneShot() const {
    std::vector<float> pooled(
        static_cast<size_t>(tokens / shape.ratio * shape.dim));
    CompressorOneShotRef({shape.kind, shape.ratio, shape.dim, ape.data(),
                          kv.data(), gate.data(), tokens, pooled.data()});
    return pooled;
  }
};

void RunCpu(const CompressorParams& p) {
  SerialParallel serial;
  CompressorCpu(p, serial);
}

class CompressorTest : public ::testing::TestWithParam<Shape> {};

TEST_P(CompressorTest, StreamingEqualsOneShotForEveryLength) {
  for (int32_t n = 1; n <= 300; ++n) {
    const Prompt prompt(GetParam(), n);
    const auto want = prompt.OneShot();
    float top = 0.0f;
    for (const float v : prompt.kv) {
      top = std::max(top, std::fabs(v));
    }
    for (const auto& got :
         {prompt.Stream(n, CompressorRef), prompt.Stream(n, RunCpu)}) {
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        // The contract of compressor.h.
        ASSERT_NEAR(got[i], want[i], 0x1p-18f * top) << n << " " << i;
      }
    }
  }
}

TEST_P(CompressorTest, EveryChunkingGivesTheSameBits) {
  for (const int32_t n : {1, 3, 4, 5, 127, 128, 129, 255, 256, 257, 300}) {
    const Prompt prompt(GetParam(), n);
    const auto want = prompt.Stream(n, RunCpu);
    for (int64_t chunk = 1; chunk < n; chunk += chunk < 9 ? 1 : 17) {
      ASSERT_TRUE(SameBits(prompt.Stream(chunk, RunCpu), want))
          << n << " in " << chunk;
    }
  }
}

TEST_P(CompressorTest, StateBytesDoNotDependOnTheChunking) {
  const Prompt prompt(GetParam(), 203);
  const auto state_after = [&](int64_t chunk) {
    std::vector<float> pooled(
        static_cast<size_t>(203 / prompt.shape.ratio * prompt.shape.dim + 1));
    std::vector<float> state = prompt.FreshState();
    for (int64_t first = 0; first < 203; first += chunk) {
      const CompressorSpan span = prompt.Span(
          first, std::min<int64_t>(chunk, 203 - first), state.data(),
          pooled.data() + first / prompt.shape.ratio * prompt.shape.dim);
      RunCpu(prompt.Params(&span, 1));
    }
    return state;
  };
  const auto want = state_after(203);
  for (const int64_t chunk : {1, 2, 7, 64, 127}) {
    EXPECT_TRUE(SameBits(state_after(chunk), want)) << chunk;
  }
}

TEST_P(CompressorTest, SpansThreadsAndTargetsDoNotChangeBits) {
  const Prompt a(GetParam(), 290);
  const auto want = a.Stream(290, RunCpu);
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      ChunkedParallel parallel(chunks);
      // Three sequences in one call, one of them empty.
      std::vector<std::vector<float>> states(3, a.FreshState());
      std::vector<std::vector<float>> rows(
          3, std::vector<float>(want.size(), kNan));
      const CompressorSpan spans[3] = {
          a.Span(0, 290, states[0].data(), rows[0].data()),
          a.Span(0, 0, states[1].data(), nullptr),
          a.Span(0, 290, states[2].data(), rows[2].data())};
      CompressorCpu(a.Params(spans, 3), parallel);
      EXPECT_TRUE(SameBits(rows[0], want));
      EXPECT_TRUE(SameBits(rows[2], want));
    }
  }
}

TEST_P(CompressorTest, ExtremeGatesDoNotOverflow) {
  Prompt prompt(GetParam(), 128);
  for (size_t i = 0; i < prompt.gate.size(); ++i) {
    prompt.gate[i] = i % 3 == 0 ? 1e4f : -1e4f;
  }
  for (const float v : prompt.Stream(5, RunCpu)) {
    ASSERT_TRUE(std::isfinite(v));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CompressorTest,
    ::testing::Values(Shape{CompressorKind::kOverlap, 4, 32},
                      Shape{CompressorKind::kOverlap, 4, 80},
                      Shape{CompressorKind::kOnline, 128, 48},
                      Shape{CompressorKind::kOnline, 16, 16}),
    [](const auto& test) {
      return std::string(test.param.kind == CompressorKind::kOverlap
                             ? "overlap"
                             : "online") +
             std::to_string(test.param.ratio) + "x" +
             std::to_string(test.param.dim);
    });

TEST(CompressorRowsTest, CountsCompletedWindows) {  // model.md A5
  EXPECT_EQ(CompressorRows(0, 3, 4), 0);
  EXPECT_EQ(CompressorRows(0, 4, 4), 1);
  EXPECT_EQ(CompressorRows(0, 8, 4), 2);
  EXPECT_EQ(CompressorRows(0, 128, 4), 32);
  EXPECT_EQ(CompressorRows(0, 127, 128), 0);
  EXPECT_EQ(CompressorRows(0, 128, 128), 1);
  EXPECT_EQ(CompressorRows(0, 2048, 4), 512);
  EXPECT_EQ(CompressorRows(0, 2052, 4), 513);
  EXPECT_EQ(CompressorRows(0, 2052, 128), 16);
  EXPECT_EQ(CompressorRows(3, 1, 4), 1);
  EXPECT_EQ(CompressorRows(4, 3, 4), 0);
}

TEST(CompressorDeathTest, RefusesACompletedRowWithoutRoom) {
  const Prompt prompt({CompressorKind::kOverlap, 4, 16}, 4);
  std::vector<float> state = prompt.FreshState();
  const CompressorSpan span = prompt.Span(0, 4, state.data(), nullptr);
  EXPECT_DEATH(RunCpu(prompt.Params(&span, 1)), "pooled is null");
}

}  // namespace
}  // namespace baton::kernels
