// Matrix product with a stored weight of any encoding of the checkpoint
// (model.md 3.7, 5; grouped form for wo_a, 5.9).
//
//   y[m, n] = sum_k x[m, group(n) * x_group_stride + k] * w[n, k]
//   group(n) = n / (rows / num_groups)
//
// Weights, [rows, cols] row-major, no alignment needed (they may point into a
// mapped file); w[n, k] in fp32:
//   kF32           float
//   kBf16          bf16 bits
//   kFp8BlockE8m0  e4m3 * e8m0 scales[n / 128, k / 128]; the scale grid is
//                  [ceil(rows / 128), ceil(cols / 128)], edge tiles partial
//   kFp8BlockF32   e4m3 * float scales[n / 128, k / 128]
//   kMxfp4         e2m1 * e8m0 scales[n, k / 32], cols a multiple of 2,
//                  scale row length ceil(cols / 32)
//   kNvfp4         e2m1 * fp32(e4m3 scales[n, k / 16] * global_scale),
//                  scale row length ceil(cols / 16)
// E4M3 NaN codes and E8M0 255 must not occur (the checkpoint loader refuses
// them). The product with a power-of-two scale is exact.
//
// x fp32 [tokens, cols], y fp32 [tokens, rows], strides in elements; y must not
// overlap x. tokens may be 0.
//
// Order (Cpu): products go into 16 fp32 lanes, lane k % 16, ascending k, FMA;
// lanes are then folded 8, 4, 2, 1 (lane i += lane i + half). So every y[m, n]
// has the same bits whatever tokens, threads or the other rows are, and on
// every machine with FMA (AVX2, AVX-512). Ref sums in double, ascending k.
// Contract: |Cpu - Ref| <= (cols / 16 + 8) * 2^-24 * sum_k |x w|; bit
// invariance exact (kernels_linear_test).
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"

namespace baton::kernels {

enum class WeightEncoding : uint8_t {
  kF32,
  kBf16,
  kFp8BlockE8m0,
  kFp8BlockF32,
  kMxfp4,
  kNvfp4,
};

struct LinearWeight {
  WeightEncoding encoding = WeightEncoding::kF32;
  const void* data = nullptr;
  const void* scales = nullptr;  // null for kF32 and kBf16
  float global_scale = 1.0f;     // kNvfp4 only
  int32_t rows = 0;              // outputs (N)
  int32_t cols = 0;              // logical inputs (K), not packed bytes
};

// Bytes of the stored weight including its scales.
int64_t LinearWeightBytes(const LinearWeight& weight);

// Writes row n, de-quantised, as `cols` floats.
void DequantizeRow(const LinearWeight& weight, int64_t row, float* out);

struct LinearParams {
  const float* x = nullptr;  // [tokens, cols] or [tokens, groups, cols]
  int64_t x_row_stride = 0;
  float* y = nullptr;  // [tokens, rows]
  int64_t y_row_stride = 0;
  int32_t tokens = 0;
  LinearWeight weight;
  // Output groups (wo_a): rows % num_groups == 0; group g reads x at offset
  // g * x_group_stride.
  int32_t num_groups = 1;
  int64_t x_group_stride = 0;
};

void LinearRef(const LinearParams& params);
void LinearCpu(const LinearParams& params, Parallel& parallel);

// Several products in one parallel region (one fork and join); the outputs are
// those of one LinearCpu call each, and must not depend on each other.
void LinearBatchCpu(const LinearParams* params, int32_t num_params,
                    Parallel& parallel);

}  // namespace baton::kernels
