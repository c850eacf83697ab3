#pragma once

#include "kernels/include/hyper_connection.h"

namespace baton::kernels {

// Abort on a violated precondition.
void CheckHyperPre(const HyperPreParams& params);
void CheckHyperPost(const HyperPostParams& params);
void CheckHyperHead(const HyperHeadParams& params);

// pre[j] of hyper_connection.h for j < hc_mult.
void HyperPreWeights(const float* m, float scale, const float* base,
                     int32_t hc_mult, float hc_eps, float* pre);

}  // namespace baton::kernels
