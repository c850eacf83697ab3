// Hyper-connection: pre, post and head mixing of the residual streams
// (model.md 5.2, 5.3, 5.4). S = hc_mult streams of width D.
//
// pre:  x = streams flattened (index = stream * D + channel)
//   r = 1 / sqrt(mean(x^2) + rms_eps);  m = (fn . x) * r   [(2 + S) * S values]
//   pre[j]  = sigmoid(m[j] * scale[0] + base[j]) + hc_eps
//   post[j] = 2 * sigmoid(m[S + j] * scale[1] + base[S + j])
//   comb[j][k] = Sinkhorn(m[2S + S*j + k] * scale[2] + base[...]): row softmax,
//     + hc_eps, column pass, then (iterations - 1) x (row pass, column pass),
//     each dividing by (sum + hc_eps)
//   mixed = sum_j pre[j] * x[j]
// post: out[k] = post[k] * y + sum_j comb[j][k] * x[j] (FIRST index of comb is
//   the input stream); out may be x.
// head: as pre with S values and no Sinkhorn: z = sum_j pre[j] * x[j].
//
// All fp32. Order: fn . x as in linear.h; sums over j ascending; sigmoid and
// exp by std::exp in fp32. Bits of a token depend on that token only.
// Contract: model.md A2; Cpu against Ref in kernels_hyper_connection_test.
#pragma once

#include <cstdint>

#include "kernels/include/parallel.h"

namespace baton::kernels {

inline constexpr int32_t kMaxStreams = 8;  // hc_mult at most

struct HyperPreParams {
  const float* streams = nullptr;  // [tokens, S, D], streams contiguous
  int64_t token_stride = 0;
  const float* fn = nullptr;     // [(2 + S) * S, S * D]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [(2 + S) * S]
  int32_t tokens = 0;
  int32_t hc_mult = 4;
  int32_t dim = 0;
  int32_t sinkhorn_iterations = 20;
  float rms_eps = 1e-6f;
  float hc_eps = 1e-6f;
  float* mixed = nullptr;  // [tokens, D]
  int64_t mixed_row_stride = 0;
  float* pre = nullptr;        // [tokens, S]
  float* post = nullptr;       // [tokens, S]
  float* comb = nullptr;       // [tokens, S, S], [input stream][output stream]
  float* workspace = nullptr;  // HyperWorkspaceFloats(tokens, hc_mult) floats
};
int64_t HyperWorkspaceFloats(int32_t tokens, int32_t hc_mult);

void HyperPreRef(const HyperPreParams& params);
void HyperPreCpu(const HyperPreParams& params, Parallel& parallel);

// The scalar part alone, for one token: m [(2 + S) * S] already times r.
void HyperMix(const float* m, const float* scale, const float* base,
              int32_t hc_mult, int32_t sinkhorn_iterations, float hc_eps,
              float* pre, float* post, float* comb);

struct HyperPostParams {
  const float* y = nullptr;  // [tokens, D] output of the sub-layer
  int64_t y_row_stride = 0;
  const float* streams = nullptr;  // [tokens, S, D] as given to pre
  int64_t token_stride = 0;
  const float* post = nullptr;  // [tokens, S]
  const float* comb = nullptr;  // [tokens, S, S]
  float* out = nullptr;         // [tokens, S, D]; may equal streams
  int64_t out_token_stride = 0;
  int32_t tokens = 0;
  int32_t hc_mult = 4;
  int32_t dim = 0;
};
void HyperPostRef(const HyperPostParams& params);
void HyperPostCpu(const HyperPostParams& params, Parallel& parallel);

struct HyperHeadParams {
  const float* streams = nullptr;  // [tokens, S, D]
  int64_t token_stride = 0;
  const float* fn = nullptr;     // [S, S * D]
  const float* scale = nullptr;  // [1]
  const float* base = nullptr;   // [S]
  int32_t tokens = 0;
  int32_t hc_mult = 4;
  int32_t dim = 0;
  float rms_eps = 1e-6f;
  float hc_eps = 1e-6f;
  float* z = nullptr;  // [tokens, D]
  int64_t z_row_stride = 0;
  float* workspace = nullptr;  // HyperWorkspaceFloats(tokens, hc_mult) floats
};
void HyperHeadRef(const HyperHeadParams& params);
void HyperHeadCpu(const HyperHeadParams& params, Parallel& parallel);

}  // namespace baton::kernels
