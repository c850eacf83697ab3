// Plain linear product: de-quantise one row, sum in double.
#include <cstring>
#include <vector>

#include "kernels/include/linear.h"
#include "kernels/include/numeric.h"
#include "kernels/internal/check.h"
#include "kernels/linear/linear_tiles.h"

namespace baton::kernels {
namespace {

constexpr int64_t kFp8Block = 128;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Loads that need no alignment.
float LoadF32(const void* base, int64_t index) {
  float value;
  std::memcpy(&value, static_cast<const unsigned char*>(base) + 4 * index,
              sizeof(value));
  return value;
}
uint16_t LoadU16(const void* base, int64_t index) {
  uint16_t value;
  std::memcpy(&value, static_cast<const unsigned char*>(base) + 2 * index,
              sizeof(value));
  return value;
}

}  // namespace

int64_t LinearWeightBytes(const LinearWeight& weight) {
  const int64_t n = weight.rows;
  const int64_t k = weight.cols;
  const int64_t blocks = CeilDiv(n, kFp8Block) * CeilDiv(k, kFp8Block);
  switch (weight.encoding) {
    case WeightEncoding::kF32:
      return n * k * 4;
    case WeightEncoding::kBf16:
      return n * k * 2;
    case WeightEncoding::kFp8BlockE8m0:
      return n * k + blocks;
    case WeightEncoding::kFp8BlockF32:
      return n * k + blocks * 4;
    case WeightEncoding::kMxfp4:
      return n * (k / 2) + n * CeilDiv(k, 32);
    case WeightEncoding::kNvfp4:
      return n * (k / 2) + n * CeilDiv(k, 16) + 4;
  }
  BATON_KERNEL_CHECK(false, "unknown weight encoding");
}

void DequantizeRow(const LinearWeight& weight, int64_t row, float* out) {
  const int64_t cols = weight.cols;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  const auto* scales = static_cast<const uint8_t*>(weight.scales);
  const int64_t block_row = row / kFp8Block * CeilDiv(cols, kFp8Block);
  for (int64_t k = 0; k < cols; ++k) {
    switch (weight.encoding) {
      case WeightEncoding::kF32:
        out[k] = LoadF32(bytes, row * cols + k);
        break;
      case WeightEncoding::kBf16:
        out[k] = F32FromBf16(LoadU16(bytes, row * cols + k));
        break;
      case WeightEncoding::kFp8BlockE8m0:
        out[k] = F32FromE4m3(bytes[row * cols + k]) *
                 F32FromE8m0(scales[block_row + k / kFp8Block]);
        break;
      case WeightEncoding::kFp8BlockF32:
        out[k] = F32FromE4m3(bytes[row * cols + k]) *
                 LoadF32(scales, block_row + k / kFp8Block);
        break;
      case WeightEncoding::kMxfp4:
        out[k] = F32FromE2m1(E2m1Nibble(bytes + row * (cols / 2), k)) *
                 F32FromE8m0(scales[row * CeilDiv(cols, 32) + k / 32]);
        break;
      case WeightEncoding::kNvfp4: {
        const float scale =
            F32FromE4m3(scales[row * CeilDiv(cols, 16) + k / 16]) *
            weight.global_scale;
        out[k] = F32FromE2m1(E2m1Nibble(bytes + row * (cols / 2), k)) * scale;
        break;
      }
    }
  }
}

void CheckLinear(const LinearParams& params) {
  const LinearWeight& w = params.weight;
  BATON_KERNEL_CHECK(params.tokens >= 0, "linear: tokens is negative");
  BATON_KERNEL_CHECK(w.rows > 0 && w.cols > 0, "linear: empty weight");
  BATON_KERNEL_CHECK(w.data != nullptr, "linear: weight data is null");
  const bool plain =
      w.encoding == WeightEncoding::kF32 || w.encoding == WeightEncoding::kBf16;
  BATON_KERNEL_CHECK(plain || w.scales != nullptr,
                     "linear: quantised weight without scales");
  const bool fp4 = w.encoding == WeightEncoding::kMxfp4 ||
                   w.encoding == WeightEncoding::kNvfp4;
  BATON_KERNEL_CHECK(!fp4 || w.cols % 2 == 0,
                     "linear: fp4 weight with an odd number of columns");
  BATON_KERNEL_CHECK(params.num_groups > 0 && w.rows % params.num_groups == 0,
                     "linear: rows are not a multiple of num_groups");
  if (params.tokens > 0) {
    BATON_KERNEL_CHECK(params.x != nullptr && params.y != nullptr,
                       "linear: x or y is null");
    BATON_KERNEL_CHECK(params.tokens == 1 || params.y_row_stride >= w.rows,
                       "linear: y row stride is smaller than the row");
  }
}

void LinearRef(const LinearParams& params) {
  CheckLinear(params);
  const int32_t group_rows = params.weight.rows / params.num_groups;
  const int32_t cols = params.weight.cols;
  std::vector<float> w(static_cast<size_t>(cols));
  for (int32_t n = 0; n < params.weight.rows && params.tokens > 0; ++n) {
    DequantizeRow(params.weight, n, w.data());
    const int64_t group = n / group_rows;
    for (int64_t m = 0; m < params.tokens; ++m) {
      const float* x =
          params.x + m * params.x_row_stride + group * params.x_group_stride;
      double sum = 0.0;
      for (int32_t k = 0; k < cols; ++k) {
        sum += double{x[k]} * double{w[static_cast<size_t>(k)]};
      }
      params.y[m * params.y_row_stride + n] = static_cast<float>(sum);
    }
  }
}

}  // namespace baton::kernels
