// Tiles of a linear product, for operations that schedule several products in
// one parallel region. A tile is 4 output rows (fewer at the end of a group)
// times all tokens.
#pragma once

#include <cstdint>

#include "kernels/include/linear.h"

namespace baton::kernels {

inline constexpr int32_t kLinearTileRows = 4;

inline int64_t LinearTilesPerGroup(const LinearParams& params) {
  const int32_t rows = params.weight.rows / params.num_groups;
  return (rows + kLinearTileRows - 1) / kLinearTileRows;
}

inline int64_t LinearNumTiles(const LinearParams& params) {
  return params.tokens == 0 ? 0
                            : LinearTilesPerGroup(params) * params.num_groups;
}

// Multiplications below which one thread is faster than waking another.
inline constexpr int64_t kMinParallelMultiplies = int64_t{1} << 16;

inline int64_t LinearMultiplies(const LinearParams& params) {
  return int64_t{params.tokens} * params.weight.rows * params.weight.cols;
}

// Aborts on a violated precondition.
void CheckLinear(const LinearParams& params);

}  // namespace baton::kernels
