// Rotary embedding of the last `rotary_dim` dims, interleaved pairs
// (model.md 5.5).
//
// For pair i of the rotated part, a = x[2i], b = x[2i + 1], at position t:
//   angle = fp32(fp32(t) * f_i), c = cos(angle), s = sin(angle) in fp32
//   forward (a*c - b*s, a*s + b*c); inverse uses -s.
// Products and sums are separate fp32 roundings (no FMA), so bits are those of
// the formula. There is no magnitude factor.
//
// Use: frequencies once per theta (BuildRopeFrequencies), angles once per step
// (ComputeRopeAngles), then Rope on every tensor of the layers of that theta.
// Contract: bit-exact Cpu == Ref; frequencies against model.md A1
// (kernels_rope_test).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/include/parallel.h"

namespace baton::kernels {

struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 64;
  bool yarn = false;  // the fields below count only then
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_positions = 0;
};

// f_i for i in [0, rotary_dim / 2).
std::vector<float> BuildRopeFrequencies(const RopeConfig& config);

struct RopeAnglesParams {
  const float* frequencies = nullptr;  // [pairs]
  int32_t pairs = 0;                   // rotary_dim / 2
  const int64_t* positions = nullptr;  // [tokens]
  int32_t tokens = 0;
  float* cosines = nullptr;  // [tokens, pairs] contiguous
  float* sines = nullptr;    // [tokens, pairs] contiguous
};
void ComputeRopeAngles(const RopeAnglesParams& params);

struct RopeParams {
  float* x = nullptr;  // [tokens, heads, head_dim], rotated in place
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int32_t tokens = 0;
  int32_t heads = 1;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;          // even, <= head_dim
  const float* cosines = nullptr;  // [tokens, rotary_dim / 2]
  const float* sines = nullptr;    // [tokens, rotary_dim / 2]
  bool inverse = false;
};
void RopeRef(const RopeParams& params);
void RopeCpu(const RopeParams& params, Parallel& parallel);

}  // namespace baton::kernels
