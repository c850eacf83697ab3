#include "kernels/include/linear.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/include/numeric.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/weight_testing.h"

namespace baton::kernels {
namespace {

std::vector<float> Multiply(const LinearWeight& weight,
                            const std::vector<float>& x, int64_t stride,
                            int32_t tokens, Parallel& parallel) {
  std::vector<float> y(static_cast<size_t>(tokens * weight.rows));
  LinearParams params;
  params.x = x.data();
  params.x_row_stride = stride;
  params.y = y.data();
  params.y_row_stride = weight.rows;
  params.tokens = tokens;
  params.weight = weight;
  LinearCpu(params, parallel);
  return y;
}

// The limit of linear.h for one output.
double Limit(const LinearWeight& weight, const float* x, int64_t row) {
  std::vector<float> w(static_cast<size_t>(weight.cols));
  DequantizeRow(weight, row, w.data());
  double magnitude = 0.0;
  for (size_t k = 0; k < w.size(); ++k) {
    magnitude += std::fabs(double{x[k]} * double{w[k]});
  }
  return (weight.cols / 16.0 + 8.0) * double{kEpsilon} * magnitude;
}

class LinearTest : public ::testing::TestWithParam<WeightEncoding> {};

TEST_P(LinearTest, CpuAgreesWithTheReferenceAtEveryEdge) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 2},
                                                {3, 14},
                                                {4, 16},
                                                {5, 18},
                                                {8, 128},
                                                {130, 130},
                                                {7, 254},
                                                {129, 256},
                                                {33, 320},
                                                {2, 1030}}) {
    const TestWeight w = MakeWeight(GetParam(), rows, cols, 3);
    const int64_t stride = cols + 3;
    for (const int32_t tokens : {0, 1, 2, 3, 4, 5, 9}) {
      std::vector<float> x(static_cast<size_t>(tokens * stride), kNan);
      for (int32_t m = 0; m < tokens; ++m) {
        const auto values =
            RandomFloats(static_cast<size_t>(cols), static_cast<uint32_t>(m));
        std::copy(values.begin(), values.end(), x.begin() + m * stride);
      }
      SerialParallel serial;
      const auto got = Multiply(w.weight, x, stride, tokens, serial);
      std::vector<float> want(got.size());
      LinearParams params;
      params.x = x.data();
      params.x_row_stride = stride;
      params.y = want.data();
      params.y_row_stride = rows;
      params.tokens = tokens;
      params.weight = w.weight;
      LinearRef(params);
      for (int64_t m = 0; m < tokens; ++m) {
        for (int64_t n = 0; n < rows; ++n) {
          const auto i = static_cast<size_t>(m * rows + n);
          ASSERT_NEAR(got[i], want[i],
                      Limit(w.weight, x.data() + m * stride, n))
              << rows << "x" << cols << " m=" << m << " n=" << n;
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowHasTheSameBitsInEveryBatchSplitAndTarget) {
  const int32_t rows = 70;
  const int32_t cols = 264;  // two tiles and a tail
  const TestWeight w = MakeWeight(GetParam(), rows, cols, 5);
  const int32_t most = 70;
  const auto x = RandomFloats(static_cast<size_t>(most * cols), 6);
  SerialParallel serial;
  const auto all = Multiply(w.weight, x, cols, most, serial);
  for (const int64_t target : FmaTargets()) {
    const ScopedTarget scoped(target);
    for (const int32_t chunks : {1, 2, 3}) {
      ChunkedParallel parallel(chunks);
      EXPECT_TRUE(SameBits(Multiply(w.weight, x, cols, most, parallel), all));
    }
    for (int32_t tokens = 1; tokens <= most; ++tokens) {
      // The last `tokens` rows, so that each lands at another place of a tile.
      const int64_t skip = most - tokens;
      const std::vector<float> part(x.begin() + skip * cols, x.end());
      const auto y = Multiply(w.weight, part, cols, tokens, serial);
      ASSERT_TRUE(SameBits(y.data(), all.data() + skip * rows, y.size()))
          << tokens << " on " << target;
    }
  }
}

TEST_P(LinearTest, EveryCodeIsExpandedExactly) {
  // x = unit vectors pick single weights: the sum has one non-zero term.
  const int32_t cols = 512;
  const TestWeight w = MakeWeight(GetParam(), 4, cols, 9, /*all_codes=*/true);
  std::vector<float> x(static_cast<size_t>(cols * cols), 0.0f);
  for (int32_t k = 0; k < cols; ++k) {
    x[static_cast<size_t>(k * cols + k)] = 1.0f;
  }
  std::vector<float> row(static_cast<size_t>(cols));
  SerialParallel serial;
  const auto many = Multiply(w.weight, x, cols, cols, serial);
  for (int64_t n = 0; n < 4; ++n) {
    DequantizeRow(w.weight, n, row.data());
    for (int64_t k = 0; k < cols; ++k) {
      const std::vector<float> unit(x.begin() + k * cols,
                                    x.begin() + (k + 1) * cols);
      const auto one = Multiply(w.weight, unit, cols, 1, serial);
      ASSERT_EQ(one[static_cast<size_t>(n)], row[static_cast<size_t>(k)]);
      ASSERT_EQ(many[static_cast<size_t>(k * 4 + n)],
                row[static_cast<size_t>(k)]);
    }
  }
}

TEST_P(LinearTest, GroupsUseTheirOwnInputs) {
  const int32_t groups = 3;
  const int32_t group_rows = 6;
  const int32_t cols = 48;
  const TestWeight w = MakeWeight(GetParam(), groups * group_rows, cols, 2);
  const int32_t tokens = 5;
  const auto x = RandomFloats(static_cast<size_t>(tokens * groups * cols), 4);
  std::vector<float> want(static_cast<size_t>(tokens * groups * group_rows));
  std::vector<float> got(want.size());
  LinearParams params;
  params.x = x.data();
  params.x_row_stride = groups * cols;
  params.x_group_stride = cols;
  params.num_groups = groups;
  params.y = want.data();
  params.y_row_stride = groups * group_rows;
  params.tokens = tokens;
  params.weight = w.weight;
  LinearRef(params);
  params.y = got.data();
  SerialParallel serial;
  LinearCpu(params, serial);
  for (int64_t m = 0; m < tokens; ++m) {
    for (int64_t n = 0; n < groups * group_rows; ++n) {
      const auto i = static_cast<size_t>(m * groups * group_rows + n);
      const float* in = x.data() + m * groups * cols + n / group_rows * cols;
      double sum = 0.0;
      std::vector<float> row(cols);
      DequantizeRow(w.weight, n, row.data());
      for (size_t k = 0; k < row.size(); ++k) {
        sum += double{in[k]} * double{row[k]};
      }
      ASSERT_EQ(want[i], static_cast<float>(sum));
      ASSERT_NEAR(got[i], want[i], Limit(w.weight, in, n));
    }
  }
}

TEST_P(LinearTest, ABatchOfProductsHasTheBitsOfSingleCalls) {
  const TestWeight a = MakeWeight(GetParam(), 37, 64, 1);
  const TestWeight b = MakeWeight(WeightEncoding::kBf16, 300, 256, 2);
  const auto x = RandomFloats(3 * 256, 8);
  SerialParallel serial;
  const auto ya = Multiply(a.weight, x, 256, 3, serial);
  const auto yb = Multiply(b.weight, x, 256, 3, serial);
  for (const int32_t chunks : {1, 2, 3, 7}) {
    std::vector<float> za(ya.size());
    std::vector<float> zb(yb.size());
    LinearParams params[2];
    params[0] = {x.data(), 256, za.data(), 37, 3, a.weight, 1, 0};
    params[1] = {x.data(), 256, zb.data(), 300, 3, b.weight, 1, 0};
    ChunkedParallel parallel(chunks);
    LinearBatchCpu(params, 2, parallel);
    EXPECT_TRUE(SameBits(za, ya));
    EXPECT_TRUE(SameBits(zb, yb));
  }
}

TEST_P(LinearTest, WeightsMayLieAtAnyAddress) {
  const TestWeight w = MakeWeight(GetParam(), 9, 50, 4);
  TestWeight moved = MakeWeight(GetParam(), 9, 50, 4);
  moved.data.insert(moved.data.begin(), 0);
  moved.scales.insert(moved.scales.begin(), 0);
  moved.weight.data = moved.data.data() + 1;
  moved.weight.scales = moved.scales.data() + 1;
  const auto x = RandomFloats(100, 8);
  SerialParallel serial;
  EXPECT_TRUE(SameBits(Multiply(w.weight, x, 50, 1, serial),
                       Multiply(moved.weight, x, 50, 1, serial)));
  EXPECT_TRUE(SameBits(Multiply(w.weight, x, 50, 2, serial),
                       Multiply(moved.weight, x, 50, 2, serial)));
}

INSTANTIATE_TEST_SUITE_P(Encodings, LinearTest,
                         ::testing::ValuesIn(kAllEncodings),
                         [](const auto& test) {
                           return EncodingName(test.param);
                         });

TEST(LinearWeightTest, BytesCountPartialTiles) {
  LinearWeight w;
  w.encoding = WeightEncoding::kFp8BlockE8m0;
  w.rows = 130;
  w.cols = 256;
  EXPECT_EQ(LinearWeightBytes(w), 130 * 256 + 2 * 2);
  w.encoding = WeightEncoding::kNvfp4;
  EXPECT_EQ(LinearWeightBytes(w), 130 * 128 + 130 * 16 + 4);
}

TEST(LinearDeathTest, RefusesScalesThatAreMissing) {
  const std::vector<uint8_t> data(256);
  const std::vector<float> x(16);
  std::vector<float> y(16);
  LinearParams params;
  params.x = x.data();
  params.y = y.data();
  params.tokens = 1;
  params.weight = {
      WeightEncoding::kFp8BlockE8m0, data.data(), nullptr, 1.0f, 16, 16};
  EXPECT_DEATH(LinearRef(params), "without scales");
}

}  // namespace
}  // namespace baton::kernels
