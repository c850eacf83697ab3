// Router of the mixture of experts (model.md 5.12).
//
//   p[e] = sqrt(softplus(logits[e])),  softplus(z) = z for z > 20
//   score routing: the top_k experts by (p + bias) descending, ties to the
//     lowest expert; output in that order
//   hash routing (tid2eid != null): experts tid2eid[token_id], in table order
//   weights = p[chosen] / (sum of p[chosen] + 1e-20) * scaling_factor
// The bias chooses only. logits = gate.weight . y come from linear.h.
// A NaN score ranks below every number.
//
// fp32 results; p is computed in double and rounded once, so that choices do
// not depend on a libm's fp32 functions. Sum and quotient in double, in output
// order, rounded once.
// Contract: choices equal to a double reference wherever its margin exceeds
// 1e-6; weights within 4 * 2^-24 relative (kernels_moe_gate_test, 10,000
// tokens). One implementation: cheap enough not to need a second.
#pragma once

#include <cstdint>

namespace baton::kernels {

struct MoeGateParams {
  const float* logits = nullptr;  // [tokens, experts]
  int64_t logits_row_stride = 0;
  const float* bias = nullptr;         // [experts]; null: none
  const int64_t* tid2eid = nullptr;    // [vocab, top_k]; null: score routing;
                                       // no alignment needed
  const int32_t* token_ids = nullptr;  // [tokens], hash routing only
  int32_t vocab = 0;                   // hash routing only
  int32_t tokens = 0;
  int32_t experts = 0;
  int32_t top_k = 0;
  float scaling_factor = 1.0f;
  int32_t* expert_ids = nullptr;  // [tokens, top_k] contiguous
  float* weights = nullptr;       // [tokens, top_k] contiguous
};

void MoeGateRef(const MoeGateParams& params);

}  // namespace baton::kernels
