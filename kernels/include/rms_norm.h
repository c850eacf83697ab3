// RMS norm over the last dimension (model.md 5, RMSNorm; 5.6 step 2).
//
//   y[r, i] = x[r, i] * (1 / sqrt(mean_i(x[r, i]^2) + eps)) * w[i]
// computed as (x * r) * w in fp32. Without a weight the last factor is absent
// (the per-head norm of queries: rows = tokens * heads, dim = head_dim).
//
// Tensors: x, y fp32 [rows, dim], row strides in elements, y may be x;
// weight bf16 bits [dim] or null, no alignment needed. rows may be 0.
// Order: squares are summed in 16 fp32 lanes (lane i % 16, FMA), then folded
// 8, 4, 2, 1. Ref sums in double.
// Contract: Cpu equals Ref within 8 * 2^-24 relative per element; bits of a
// row depend on that row only (kernels_rms_norm_test).
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"

namespace baton::kernels {

struct RmsNormParams {
  const float* x = nullptr;  // [rows, dim]
  int64_t x_row_stride = 0;
  const uint16_t* weight = nullptr;  // bf16 [dim]; null: unweighted
  float* y = nullptr;                // [rows, dim]; may equal x
  int64_t y_row_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  float eps = 1e-6f;
};

void RmsNormRef(const RmsNormParams& params);
void RmsNormCpu(const RmsNormParams& params, Parallel& parallel);

}  // namespace baton::kernels
