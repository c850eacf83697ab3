#include "kernels/include/indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/include/numeric.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

std::vector<int32_t> Select(const std::vector<float>& scores, int32_t k) {
  std::vector<int32_t> selected(std::min(scores.size(), static_cast<size_t>(k)),
                                -1);
  EXPECT_EQ(SelectTopK(scores.data(), static_cast<int64_t>(scores.size()), k,
                       selected.data()),
            static_cast<int32_t>(selected.size()));
  return selected;
}

// The definition: sort by (score descending, row ascending), NaN lowest.
std::vector<int32_t> SelectBySorting(const std::vector<float>& scores,
                                     int32_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) {
      return !std::isnan(x) && std::isnan(y);
    }
    return x > y;
  });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectTopKTest, EqualsSortingForRandomScores) {
  for (const size_t n : {0, 1, 2, 63, 64, 65, 511, 513, 3000}) {
    for (const int32_t k : {1, 2, 64, 512}) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        auto scores = RandomFloats(n, seed, 10.0f);
        for (float& v : scores) {
          // Every second seed rounds hard, which makes many ties.
          v = seed % 2 == 0 ? v : std::round(v / 5.0f) * 5.0f;
        }
        ASSERT_EQ(Select(scores, k), SelectBySorting(scores, k))
            << n << " " << k << " " << seed;
      }
    }
  }
}

TEST(SelectTopKTest, TiesGoToTheLowestRow) {
  EXPECT_EQ(Select({1, 2, 2, 2, 0}, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Select(std::vector<float>(9, 3.0f), 4),
            (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Select({-0.0f, 0.0f, -0.0f}, 2), (std::vector<int32_t>{0, 1}));
}

TEST(SelectTopKTest, NanRanksBelowMinusInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Select({kNan, -inf, kNan, inf, 0}, 3),
            (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(Select({kNan, -inf, kNan, inf, 0}, 4),
            (std::vector<int32_t>{0, 1, 3, 4}));
  EXPECT_EQ(Select(std::vector<float>(5, -kNan), 2),
            (std::vector<int32_t>{0, 1}));
}

// Rows of one query in shuffled pages; everything else in the pool is NaN.
struct Fixture {
  int32_t heads = 5;
  int32_t dim = 40;
  int64_t count;
  RowEncoding encoding;
  std::vector<float> q, weights, rows, pool_f32;
  std::vector<unsigned char> pool;
  std::vector<int32_t> table;
  int32_t rows_per_page = 8;

  Fixture(int64_t n, RowEncoding e) : count(n), encoding(e) {
    q = RandomFloats(static_cast<size_t>(heads * dim), 1);
    weights = RandomFloats(static_cast<size_t>(heads), 2);
    rows = RandomFloats(static_cast<size_t>(n * dim), 3);
    const int64_t pages = n / rows_per_page + 3;
    pool.assign(static_cast<size_t>(pages * PageBytes()), 0xFF);  // NaN
    for (int32_t p = 0; p < pages; ++p) {
      table.push_back(static_cast<int32_t>(pages - 1 - p));
    }
    for (int64_t w = 0; w < n; ++w) {
      EncodeRow(rows.data() + w * dim, dim, encoding, RowAddress(Layout(), w));
    }
  }
  int64_t RowBytes() const { return dim * BytesPerValue(encoding) + 4; }
  int64_t PageBytes() const { return RowBytes() * rows_per_page + 12; }
  RowLayout Layout() {
    return {pool.data(), PageBytes(), RowBytes(), table.data(), rows_per_page};
  }
  IndexerQuery Query(std::vector<float>* scores,
                     std::vector<int32_t>* selected) {
    IndexerQuery query;
    query.q = q.data();
    query.weights = weights.data();
    query.rows = Layout();
    query.visible_rows = count;
    query.scores = scores->data();
    query.selected = selected->data();
    return query;
  }
  IndexerParams Params(const IndexerQuery* queries, int32_t n,
                       int32_t top_k) const {
    return {queries, n, dim, heads, dim, top_k, encoding};
  }
};

TEST(IndexerTest, CpuAgreesWithTheReference) {
  for (const RowEncoding encoding : {RowEncoding::kF32, RowEncoding::kBf16}) {
    for (const int64_t n : {5, 6, 7, 8, 9, 70, 200}) {
      Fixture f(n, encoding);
      const auto size = static_cast<size_t>(n);
      std::vector<float> want(size, kNan), got(size, kNan);
      std::vector<int32_t> chosen(4), picked(4);
      IndexerQuery query = f.Query(&want, &chosen);
      IndexerRef(f.Params(&query, 1, 4));
      query = f.Query(&got, &picked);
      SerialParallel serial;
      IndexerCpu(f.Params(&query, 1, 4), serial);
      std::vector<float> row(static_cast<size_t>(f.dim));
      for (size_t w = 0; w < size; ++w) {
        DecodeRow(RowAddress(f.Layout(), static_cast<int64_t>(w)), f.dim,
                  encoding, row.data());
        double magnitude = 0.0;
        for (size_t h = 0; h < f.weights.size(); ++h) {
          for (size_t k = 0; k < row.size(); ++k) {
            magnitude += std::fabs(
                double{f.weights[h] * f.q[h * row.size() + k] * row[k]});
          }
        }
        // The contract of indexer.h.
        const double limit =
            (f.dim / 16.0 + f.heads + 8) * kEpsilon * magnitude;
        ASSERT_NEAR(got[w], want[w], limit) << n << " " << w;
      }
      EXPECT_EQ(picked, SelectBySorting(got, 4));
    }
  }
}

TEST(IndexerTest, BitsDoNotDependOnBatchThreadsOrTarget) {
  Fixture f(900, RowEncoding::kF32);
  std::vector<float> want(900);
  std::vector<int32_t> chosen(64);
  IndexerQuery one = f.Query(&want, &chosen);
  SerialParallel serial;
  IndexerCpu(f.Params(&one, 1, 64), serial);
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      std::vector<std::vector<float>> scores(3, std::vector<float>(900));
      std::vector<std::vector<int32_t>> selected(3, std::vector<int32_t>(64));
      IndexerQuery queries[3];
      for (size_t i = 0; i < 3; ++i) {
        queries[i] = f.Query(&scores[i], &selected[i]);
      }
      queries[1].visible_rows = 123;
      ChunkedParallel parallel(chunks);
      IndexerCpu(f.Params(queries, 3, 64), parallel);
      EXPECT_TRUE(SameBits(scores[0], want));
      EXPECT_TRUE(SameBits(scores[1].data(), want.data(), 123));
      EXPECT_TRUE(SameBits(scores[2], want));
      EXPECT_EQ(selected[0], chosen);
      EXPECT_EQ(selected[2], chosen);
    }
  }
}

TEST(IndexerTest, SelectsAllWithoutScoringWhenTheyFit) {
  for (const int64_t n : {0, 1, 63, 64}) {
    IndexerQuery query;  // no q, no rows: they must not be touched
    std::vector<int32_t> selected(static_cast<size_t>(n) + 1, -1);
    query.visible_rows = n;
    query.selected = selected.data();
    SerialParallel serial;
    IndexerCpu({&query, 1, 128, 8, 128, 64, RowEncoding::kF32}, serial);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(selected[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(selected.back(), -1);
  }
}

}  // namespace
}  // namespace baton::kernels
