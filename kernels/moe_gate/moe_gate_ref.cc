#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/include/moe_gate.h"
#include "kernels/internal/check.h"
#include "kernels/internal/scratch.h"

namespace baton::kernels {
namespace {

// sqrt(softplus(z)). log1p(exp(z)) keeps small values exact; above 20 softplus
// is z to within 2e-9.
float Probability(float logit) {
  const double z = logit;
  return static_cast<float>(std::sqrt(z > 20.0 ? z : std::log1p(std::exp(z))));
}

// Selection by repeated scan of the scores: experts and top_k are small. A
// chosen expert is recognised by its presence in `chosen`.
void ChooseByScore(const MoeGateParams& params, const float* logits,
                   int32_t* chosen) {
  float* scores = ThreadScratch(params.experts);
  for (int32_t e = 0; e < params.experts; ++e) {
    const float bias = params.bias != nullptr ? params.bias[e] : 0.0f;
    const float score = Probability(logits[e]) + bias;
    scores[e] = std::isnan(score) ? -INFINITY : score;
  }
  for (int32_t k = 0; k < params.top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < params.experts; ++e) {
      const bool taken = std::find(chosen, chosen + k, e) != chosen + k;
      if (!taken && (best < 0 || scores[e] > scores[best])) {
        best = e;
      }
    }
    chosen[k] = best;
  }
}

void ChooseByHash(const MoeGateParams& params, int64_t token, int32_t* chosen) {
  const int32_t id = params.token_ids[token];
  BATON_KERNEL_CHECK(id >= 0 && id < params.vocab,
                     "moe_gate: token id outside the vocabulary");
  const auto* table = reinterpret_cast<const unsigned char*>(params.tid2eid);
  for (int32_t k = 0; k < params.top_k; ++k) {
    int64_t expert;
    std::memcpy(&expert, table + 8 * (int64_t{id} * params.top_k + k),
                sizeof(expert));
    BATON_KERNEL_CHECK(expert >= 0 && expert < params.experts,
                       "moe_gate: tid2eid names an expert that does not exist");
    chosen[k] = static_cast<int32_t>(expert);
  }
}

}  // namespace

void MoeGateRef(const MoeGateParams& params) {
  BATON_KERNEL_CHECK(params.top_k > 0 && params.top_k <= params.experts,
                     "moe_gate: top_k is not in 1..experts");
  BATON_KERNEL_CHECK(params.tid2eid == nullptr || params.token_ids != nullptr,
                     "moe_gate: hash routing without token ids");
  for (int64_t t = 0; t < params.tokens; ++t) {
    const float* logits = params.logits + t * params.logits_row_stride;
    int32_t* chosen = params.expert_ids + t * params.top_k;
    float* weights = params.weights + t * params.top_k;
    if (params.tid2eid != nullptr) {
      ChooseByHash(params, t, chosen);
    } else {
      ChooseByScore(params, logits, chosen);
    }
    double sum = 0.0;
    for (int32_t k = 0; k < params.top_k; ++k) {
      weights[k] = Probability(logits[chosen[k]]);
      sum += weights[k];
    }
    for (int32_t k = 0; k < params.top_k; ++k) {
      weights[k] = static_cast<float>(double{weights[k]} / (sum + 1e-20) *
                                      double{params.scaling_factor});
    }
  }
}

}  // namespace baton::kernels
