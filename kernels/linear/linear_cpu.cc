// SIMD linear product. One token: weights are expanded in registers beside the
// multiplication (the memory stream bounds it). Several tokens: each tile of 4
// weight rows is expanded once into scratch and used for all tokens. Both give
// the same bits because the expanded weights are exact.
#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/include/linear.h"
#include "kernels/internal/dot-inl.h"
#include "kernels/internal/scratch.h"
#include "kernels/linear/linear_tiles.h"
#include "kernels/linear/readers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {

// Rows [row, row + count) of the weight times all tokens.
struct Tile {
  const LinearParams* params;
  const float* x;  // of this tile's group
  int64_t row;
  int64_t count;
};

HWY_INLINE F32Reader MakeReader(const LinearWeight& w, int64_t row,
                                F32Reader*) {
  return {static_cast<const uint8_t*>(w.data) + 4 * row * w.cols};
}
HWY_INLINE Bf16Reader MakeReader(const LinearWeight& w, int64_t row,
                                 Bf16Reader*) {
  return {static_cast<const uint8_t*>(w.data) + 2 * row * w.cols};
}
template <bool kE8m0>
HWY_INLINE Fp8Reader<kE8m0> MakeReader(const LinearWeight& w, int64_t row,
                                       Fp8Reader<kE8m0>*) {
  const int64_t grid_cols = (int64_t{w.cols} + 127) / 128;
  return {static_cast<const uint8_t*>(w.data) + row * w.cols,
          static_cast<const uint8_t*>(w.scales) +
              row / 128 * grid_cols * (kE8m0 ? 1 : 4)};
}
template <bool kNv>
HWY_INLINE Fp4Reader<kNv> MakeReader(const LinearWeight& w, int64_t row,
                                     Fp4Reader<kNv>*) {
  constexpr int64_t kSlab = Fp4Reader<kNv>::kSlab;
  return {static_cast<const uint8_t*>(w.data) + row * (w.cols / 2),
          static_cast<const uint8_t*>(w.scales) +
              row * ((w.cols + kSlab - 1) / kSlab),
          w.global_scale};
}

// Expands one weight row, exactly.
template <class Reader>
HWY_INLINE void ExpandRow(Reader reader, int64_t cols, float* out) {
  const int64_t full = cols & ~int64_t{15};
  for (int64_t slab = 0; slab < full; slab += Reader::kSlab) {
    const auto scale = reader.Begin(slab);
    const int64_t end = std::min(full, slab + Reader::kSlab);
    for (int64_t k = slab; k < end; k += 16) {
      Store16(reader.Load(k, scale), out + k);
    }
  }
  if (full < cols) {
    reader.Tail(full, cols - full, out + full);
  }
}

template <int NT, class Reader>
HWY_INLINE void RunRows(const Tile& tile, int64_t row) {
  const LinearParams& p = *tile.params;
  const int64_t cols = p.weight.cols;
  Reader readers[NT];
  for (int n = 0; n < NT; ++n) {
    readers[n] = MakeReader(p.weight, row + n, static_cast<Reader*>(nullptr));
  }
  if (p.tokens == 1) {
    float out[NT];
    const float* x[1] = {tile.x};
    DotTile<1, NT>(x, readers, cols, out);
    std::memcpy(p.y + row, out, sizeof(out));
    return;
  }
  const int64_t padded = (cols + 15) & ~int64_t{15};
  float* expanded = ThreadScratch(NT * padded);
  F32Reader rows[NT];
  for (int n = 0; n < NT; ++n) {
    ExpandRow(readers[n], cols, expanded + n * padded);
    rows[n].data = reinterpret_cast<const uint8_t*>(expanded + n * padded);
  }
  // With two registers per 16 lanes a tile of 4 rows does not fit.
  constexpr int kStep = NT == 4 && kParts > 1 ? 2 : NT;
  for (int n = 0; n < NT; n += kStep) {
    DotColumn<kStep>(tile.x, p.x_row_stride, p.tokens, rows + n, cols,
                     p.y + row + n, p.y_row_stride);
  }
}

template <class Reader>
HWY_NOINLINE void RunTile(const Tile& tile) {
  if (tile.count == kLinearTileRows) {
    RunRows<kLinearTileRows, Reader>(tile, tile.row);
    return;
  }
  for (int64_t n = 0; n < tile.count; ++n) {
    RunRows<1, Reader>(tile, tile.row + n);
  }
}

void RunTiles(const LinearParams& params, int64_t begin, int64_t end) {
  const int64_t per_group = LinearTilesPerGroup(params);
  const int64_t group_rows = params.weight.rows / params.num_groups;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t group = t / per_group;
    const int64_t first = t % per_group * kLinearTileRows;
    const Tile tile{&params, params.x + group * params.x_group_stride,
                    group * group_rows + first,
                    std::min<int64_t>(kLinearTileRows, group_rows - first)};
    switch (params.weight.encoding) {
      case WeightEncoding::kF32:
        RunTile<F32Reader>(tile);
        break;
      case WeightEncoding::kBf16:
        RunTile<Bf16Reader>(tile);
        break;
      case WeightEncoding::kFp8BlockE8m0:
        RunTile<Fp8Reader<true>>(tile);
        break;
      case WeightEncoding::kFp8BlockF32:
        RunTile<Fp8Reader<false>>(tile);
        break;
      case WeightEncoding::kMxfp4:
        RunTile<Fp4Reader<false>>(tile);
        break;
      case WeightEncoding::kNvfp4:
        RunTile<Fp4Reader<true>>(tile);
        break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(RunTiles);

void LinearCpu(const LinearParams& params, Parallel& parallel) {
  LinearBatchCpu(&params, 1, parallel);
}

void LinearBatchCpu(const LinearParams* params, int32_t num_params,
                    Parallel& parallel) {
  int64_t tiles = 0;
  int64_t multiplies = 0;
  for (int32_t i = 0; i < num_params; ++i) {
    CheckLinear(params[i]);
    tiles += LinearNumTiles(params[i]);
    multiplies += LinearMultiplies(params[i]);
  }
  const auto run = [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (int32_t i = 0; i < num_params && first < end; ++i) {
      const int64_t count = LinearNumTiles(params[i]);
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, count);
      if (from < to) {
        HWY_DYNAMIC_DISPATCH(RunTiles)(params[i], from, to);
      }
      first += count;
    }
  };
  if (multiplies < kMinParallelMultiplies) {
    run(0, tiles);
  } else {
    parallel.For(tiles, run);
  }
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
