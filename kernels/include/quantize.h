// Quantisation primitives of the `reference` policy (model.md 4, 5.10).
//
// act_quant, block B:  amax = max(max|x|, 1e-4);
//   s = pow2ceil(fp32(amax * fp32(1/448)));  q = e4m3(clamp(x / s, +-448)).
// fp4_act_quant, block 32:  amax = max(max|x|, 6 * 2^-126);
//   s = pow2ceil(fp32(amax * fp32(1/6)));  q = e2m1(clamp(x / s, +-6)).
// Hadamard: y = H_n x * n^-1/2, natural (Sylvester) order, fp32.
//
// Pure functions over one row; x may alias the output. A last block shorter
// than B has its own scale. Bit-exact: kernels_quantize_test (model.md A3, A4).
#pragma once

#include <cstdint>

namespace baton::kernels {

// Exponent of the block scale for the largest magnitude `amax` of a block.
int32_t ActQuantExponent(float amax);
int32_t Fp4ActQuantExponent(float amax);

// x [n] -> codes [n] and one E8M0 scale per block [ceil(n / block)].
void ActQuantRow(const float* x, int64_t n, int32_t block, uint8_t* codes,
                 uint8_t* scales);

// x [n] -> bf16(q * s) widened to fp32 [n]: what the reference stores.
void ActQuantSimulateRow(const float* x, int64_t n, int32_t block, float* out);

// n a multiple of 2. codes are packed nibbles [n / 2]; scales [ceil(n / 32)].
void Fp4ActQuantRow(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);
void Fp4ActQuantSimulateRow(const float* x, int64_t n, float* out);

// In place over one row of n values, n a power of two (128 for the indexer).
// Rounding to bf16 afterwards is the caller's (the policy's) choice.
void HadamardRow(float* x, int64_t n);

}  // namespace baton::kernels
