#include "kernels/include/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

void CheckRope(const RopeParams& params) {
  BATON_KERNEL_CHECK(params.tokens >= 0 && params.heads >= 0,
                     "rope: negative size");
  BATON_KERNEL_CHECK(params.rotary_dim > 0 && params.rotary_dim % 2 == 0 &&
                         params.rotary_dim <= params.head_dim,
                     "rope: rotary_dim is not even or exceeds head_dim");
  BATON_KERNEL_CHECK(
      params.tokens == 0 || (params.x != nullptr && params.cosines != nullptr &&
                             params.sines != nullptr),
      "rope: x or angles are null");
}

void RotateToken(const RopeParams& params, int64_t t) {
  const int64_t pairs = params.rotary_dim / 2;
  const float* cosines = params.cosines + t * pairs;
  const float* sines = params.sines + t * pairs;
  for (int64_t h = 0; h < params.heads; ++h) {
    float* x = params.x + t * params.token_stride + h * params.head_stride +
               (params.head_dim - params.rotary_dim);
    for (int64_t i = 0; i < pairs; ++i) {
      const float c = cosines[i];
      const float s = params.inverse ? -sines[i] : sines[i];
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * c - b * s;
      x[2 * i + 1] = a * s + b * c;
    }
  }
}

}  // namespace

std::vector<float> BuildRopeFrequencies(const RopeConfig& config) {
  BATON_KERNEL_CHECK(config.rotary_dim > 0 && config.rotary_dim % 2 == 0,
                     "rope: rotary_dim is not a positive even number");
  const int32_t pairs = config.rotary_dim / 2;
  const double dim = config.rotary_dim;
  std::vector<float> frequencies(static_cast<size_t>(pairs));
  for (int32_t i = 0; i < pairs; ++i) {
    frequencies[static_cast<size_t>(i)] =
        1.0f / std::pow(static_cast<float>(config.theta),
                        static_cast<float>(2 * i) /
                            static_cast<float>(config.rotary_dim));
  }
  if (!config.yarn) {
    return frequencies;
  }
  BATON_KERNEL_CHECK(config.original_positions > 0 && config.factor > 0.0,
                     "rope: yarn without original_positions or factor");
  // Pair index whose wave length fits `rotations` times into the original
  // context.
  const auto dim_of = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(config.original_positions) /
                    (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  const double low = std::max(std::floor(dim_of(config.beta_fast)), 0.0);
  double high = std::min(std::ceil(dim_of(config.beta_slow)), dim - 1.0);
  if (high <= low) {
    high = low + 0.001;  // a step instead of a ramp
  }
  const auto factor = static_cast<float>(config.factor);
  for (int32_t i = 0; i < pairs; ++i) {
    float& f = frequencies[static_cast<size_t>(i)];
    const auto ramp =
        static_cast<float>(std::clamp((i - low) / (high - low), 0.0, 1.0));
    f = f / factor * ramp + f * (1.0f - ramp);
  }
  return frequencies;
}

void ComputeRopeAngles(const RopeAnglesParams& params) {
  BATON_KERNEL_CHECK(params.tokens >= 0 && params.pairs > 0,
                     "rope: negative tokens or no pairs");
  for (int64_t t = 0; t < params.tokens; ++t) {
    const auto position = static_cast<float>(params.positions[t]);
    for (int64_t i = 0; i < params.pairs; ++i) {
      const float angle = position * params.frequencies[i];
      params.cosines[t * params.pairs + i] = std::cos(angle);
      params.sines[t * params.pairs + i] = std::sin(angle);
    }
  }
}

void RopeRef(const RopeParams& params) {
  CheckRope(params);
  for (int64_t t = 0; t < params.tokens; ++t) {
    RotateToken(params, t);
  }
}

// Element-wise and short: the reference loop over several threads.
void RopeCpu(const RopeParams& params, Parallel& parallel) {
  CheckRope(params);
  constexpr int64_t kMinParallelValues = 1 << 15;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      RotateToken(params, t);
    }
  };
  if (int64_t{params.tokens} * params.heads * params.rotary_dim <
      kMinParallelValues) {
    run(0, params.tokens);
  } else {
    parallel.For(params.tokens, run);
  }
}

}  // namespace baton::kernels
