// Routed experts and the shared expert (model.md 5.13).
//
//   a = w1 x, b = w3 x; with limit L > 0: a = min(a, L), b = clamp(b, -L, L)
//   u = a * sigmoid(a) * b * weight      (weight before w2; shared: weight 1)
//   y = sum over chosen experts, ascending expert index, of w2 u; then + shared
// An expert chosen twice by a token counts twice, in slot order.
//
// fp32 activations; products as in linear.h (any encoding, per matrix). Tokens
// are grouped by expert; bits of a token's output depend on that token only.
// Ref: per token, LinearRef products (double), sums in fp32.
// Contract: kernels_experts_test. The workspace is the caller's
// (ExpertsWorkspaceBytes, 16-byte aligned), so nothing is allocated.
#pragma once

#include <cstdint>

#include "kernels/include/linear.h"
#include "kernels/include/parallel.h"

namespace baton::kernels {

struct ExpertWeights {
  LinearWeight w1;  // gate [hidden, dim]
  LinearWeight w2;  // down [dim, hidden]
  LinearWeight w3;  // up [hidden, dim]
};

struct ExpertsParams {
  const float* x = nullptr;  // [tokens, dim]
  int64_t x_row_stride = 0;
  const int32_t* expert_ids = nullptr;     // [tokens, top_k] contiguous
  const float* expert_weights = nullptr;   // [tokens, top_k] contiguous
  const ExpertWeights* experts = nullptr;  // [num_experts]
  const ExpertWeights* shared = nullptr;   // null: no shared expert
  int32_t tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int32_t dim = 0;
  int32_t hidden = 0;  // of routed and shared experts
  float limit = 0.0f;  // swiglu_limit; 0: no clamp
  float* y = nullptr;  // [tokens, dim]
  int64_t y_row_stride = 0;
  void* workspace = nullptr;  // ExpertsWorkspaceBytes(...)
};

struct ExpertsSizes {
  int32_t tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int32_t dim = 0;
  int32_t hidden = 0;
};
int64_t ExpertsWorkspaceBytes(const ExpertsSizes& sizes);

void ExpertsRef(const ExpertsParams& params);  // ignores workspace
void ExpertsCpu(const ExpertsParams& params, Parallel& parallel);

}  // namespace baton::kernels
