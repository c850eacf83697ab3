#include "kernels/include/sparse_attention.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

// Tokens with lists of different lengths over one pool of rows; the pool's
// other bytes are NaN.
struct Fixture {
  int32_t heads;
  int32_t dim;
  RowEncoding encoding;
  std::vector<float> q, out, sink;
  std::vector<unsigned char> pool;
  std::vector<const void*> rows;
  std::vector<int64_t> begin = {0};

  Fixture(const std::vector<int64_t>& counts, int32_t h, int32_t d,
          RowEncoding e)
      : heads(h), dim(d), encoding(e) {
    const auto n = counts.size() * static_cast<size_t>(h * d);
    q = RandomFloats(n, 1);
    out.assign(n, kNan);
    sink = RandomFloats(static_cast<size_t>(h), 2);
    int64_t most = 1;
    for (const int64_t c : counts) {
      most = std::max(most, c);
    }
    const int64_t stride = d * BytesPerValue(e) + 4;
    pool.assign(static_cast<size_t>(stride * (2 * most + 1)), 0xFF);
    const auto values = RandomFloats(static_cast<size_t>(most * d), 3);
    for (int64_t r = 0; r < most; ++r) {
      // Every second place of the pool stays NaN.
      EncodeRow(values.data() + r * d, d, e, At(2 * r + 1, stride));
    }
    for (const int64_t c : counts) {
      for (int64_t r = 0; r < c; ++r) {
        rows.push_back(At(2 * ((r * 7 + c) % most) + 1, stride));
      }
      begin.push_back(static_cast<int64_t>(rows.size()));
    }
    rows.push_back(At(0, stride));  // a NaN row behind the last list
  }
  void* At(int64_t index, int64_t stride) {
    return pool.data() + index * stride;
  }
  SparseAttentionParams Params() {
    SparseAttentionParams p;
    p.q = q.data();
    p.q_token_stride = heads * dim;
    p.q_head_stride = dim;
    p.out = out.data();
    p.out_token_stride = heads * dim;
    p.out_head_stride = dim;
    p.rows = rows.data();
    p.row_begin = begin.data();
    p.encoding = encoding;
    p.sink = sink.data();
    p.tokens = static_cast<int32_t>(begin.size()) - 1;
    p.heads = heads;
    p.dim = dim;
    p.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    return p;
  }
};

TEST(SparseAttentionTest, CpuAgreesWithTheReference) {
  const std::vector<int64_t> counts = {0, 1, 2, 3, 4, 5, 15, 16, 17, 128, 192};
  for (const RowEncoding encoding : {RowEncoding::kF32, RowEncoding::kBf16}) {
    for (const auto& [heads, dim] : std::vector<std::pair<int32_t, int32_t>>{
             {8, 512}, {1, 16}, {3, 48}, {5, 80}}) {
      Fixture ref(counts, heads, dim, encoding);
      Fixture cpu(counts, heads, dim, encoding);
      SparseAttentionRef(ref.Params());
      SerialParallel serial;
      SparseAttentionCpu(cpu.Params(), serial);
      const auto per_token = static_cast<size_t>(heads * dim);
      for (size_t i = 0; i < ref.out.size(); ++i) {
        // The contract of sparse_attention.h; |s| < 6 and |row| < 5 here.
        const auto count = static_cast<float>(counts[i / per_token]);
        const float limit =
            (static_cast<float>(dim) / 16 + count + 32) * kEpsilon * 7 * 5;
        ASSERT_NEAR(cpu.out[i], ref.out[i], limit)
            << heads << "x" << dim << " " << i;
      }
    }
  }
}

TEST(SparseAttentionTest, TheSinkOnlyGrowsTheDenominator) {
  Fixture f({2}, 1, 16, RowEncoding::kF32);
  f.q.assign(16, 0.0f);  // equal scores of zero
  f.sink[0] = std::log(2.0f);
  std::vector<float> a(16, 1.0f), b(16, 3.0f);
  f.rows = {a.data(), b.data()};
  SerialParallel serial;
  SparseAttentionCpu(f.Params(), serial);
  for (const float v : f.out) {
    EXPECT_NEAR(v, (1.0 + 3.0) / (2.0 + 2.0), 4 * kEpsilon);
  }
  f.sink[0] = 200.0f;  // far above every score: nothing is left, no NaN
  SparseAttentionCpu(f.Params(), serial);
  for (const float v : f.out) {
    EXPECT_EQ(v, 0.0f);
  }
}

TEST(SparseAttentionTest, NoRowsGiveZeros) {
  Fixture f({0}, 3, 32, RowEncoding::kF32);
  SerialParallel serial;
  SparseAttentionCpu(f.Params(), serial);
  EXPECT_EQ(f.out, std::vector<float>(96, 0.0f));
  f.out.assign(96, kNan);
  SparseAttentionRef(f.Params());
  EXPECT_EQ(f.out, std::vector<float>(96, 0.0f));
}

TEST(SparseAttentionTest, LargeScoresStayFinite) {
  Fixture f({20}, 4, 64, RowEncoding::kF32);
  for (float& v : f.q) {
    v *= 1e4f;
  }
  SerialParallel serial;
  SparseAttentionCpu(f.Params(), serial);
  for (const float v : f.out) {
    ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(SparseAttentionTest, ATokenHasTheSameBitsInEveryBatchSplitAndTarget) {
  const std::vector<int64_t> counts = {31, 0, 100, 7, 192, 64};
  for (const RowEncoding encoding : {RowEncoding::kF32, RowEncoding::kBf16}) {
    Fixture first(counts, 8, 128, encoding);
    SerialParallel serial;
    SparseAttentionCpu(first.Params(), serial);
    for (const int64_t target : FmaTargets()) {
      const ScopedTarget scoped(target);
      for (const int32_t chunks : {1, 2, 3}) {
        Fixture f(counts, 8, 128, encoding);
        ChunkedParallel parallel(chunks);
        SparseAttentionCpu(f.Params(), parallel);
        EXPECT_TRUE(SameBits(f.out, first.out));
        // Token 4 alone, and its last 3 heads alone.
        f.out.assign(f.out.size(), 0.0f);
        SparseAttentionParams p = f.Params();
        p.q += 4 * p.q_token_stride + 5 * p.q_head_stride;
        p.sink += 5;
        p.heads = 3;
        p.row_begin += 4;
        p.tokens = 1;
        SparseAttentionCpu(p, parallel);
        EXPECT_TRUE(SameBits(f.out.data(), first.out.data() + (4 * 8 + 5) * 128,
                             3 * 128));
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels
