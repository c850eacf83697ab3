// Random stored weights of every encoding, for tests and the benchmark.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/include/linear.h"
#include "kernels/include/numeric.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {

inline constexpr WeightEncoding kAllEncodings[] = {
    WeightEncoding::kF32,          WeightEncoding::kBf16,
    WeightEncoding::kFp8BlockE8m0, WeightEncoding::kFp8BlockF32,
    WeightEncoding::kMxfp4,        WeightEncoding::kNvfp4};

inline std::string EncodingName(WeightEncoding encoding) {
  switch (encoding) {
    case WeightEncoding::kF32:
      return "f32";
    case WeightEncoding::kBf16:
      return "bf16";
    case WeightEncoding::kFp8BlockE8m0:
      return "fp8_e8m0";
    case WeightEncoding::kFp8BlockF32:
      return "fp8_f32";
    case WeightEncoding::kMxfp4:
      return "mxfp4";
    case WeightEncoding::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

// Owns the bytes; moving keeps the pointers valid (vector buffers move).
struct TestWeight {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  LinearWeight weight;
};

// all_codes: codes count up instead of being random, so that each occurs.
inline TestWeight MakeWeight(WeightEncoding encoding, int32_t rows,
                             int32_t cols, uint32_t seed,
                             bool all_codes = false) {
  TestWeight w;
  const size_t n = static_cast<size_t>(rows);
  const size_t k = static_cast<size_t>(cols);
  const auto ceil_div = [](size_t a, size_t b) { return (a + b - 1) / b; };
  const size_t tiles = ceil_div(n, 128) * ceil_div(k, 128);
  w.weight.encoding = encoding;
  w.weight.rows = rows;
  w.weight.cols = cols;
  const auto floats = RandomFloats(n * k, seed, 0.05f);
  switch (encoding) {
    case WeightEncoding::kF32:
      w.data.resize(n * k * 4);
      std::memcpy(w.data.data(), floats.data(), w.data.size());
      break;
    case WeightEncoding::kBf16:
      w.data.resize(n * k * 2);
      for (size_t i = 0; i < n * k; ++i) {
        const uint16_t bits = Bf16FromF32(floats[i]);
        std::memcpy(w.data.data() + 2 * i, &bits, 2);
      }
      break;
    case WeightEncoding::kFp8BlockE8m0:
    case WeightEncoding::kFp8BlockF32:
      w.data = RandomBytes(n * k, seed);
      for (size_t i = 0; i < w.data.size(); ++i) {
        if (all_codes) {
          w.data[i] = static_cast<uint8_t>(i);
        }
        if ((w.data[i] & 0x7F) == 0x7F) {
          w.data[i] = 0;  // not a number: never in a checkpoint
        }
      }
      if (encoding == WeightEncoding::kFp8BlockE8m0) {
        w.scales = RandomBytes(tiles, seed + 1);
        for (uint8_t& s : w.scales) {
          s = static_cast<uint8_t>(112 + s % 12);
        }
      } else {
        w.scales.resize(tiles * 4);
        const auto scales = RandomFloats(tiles, seed + 1, 0.001f);
        std::memcpy(w.scales.data(), scales.data(), w.scales.size());
      }
      break;
    case WeightEncoding::kMxfp4:
    case WeightEncoding::kNvfp4: {
      w.data = RandomBytes(n * k / 2, seed);
      for (size_t i = 0; i < w.data.size() && all_codes; ++i) {
        w.data[i] = static_cast<uint8_t>(i);
      }
      const bool nv = encoding == WeightEncoding::kNvfp4;
      w.scales = RandomBytes(n * ceil_div(k, nv ? 16 : 32), seed + 1);
      for (uint8_t& s : w.scales) {
        // NVFP4 scales are positive; every positive finite code may occur.
        s = static_cast<uint8_t>(nv ? s % 0x7F : 112 + s % 12);
      }
      w.weight.global_scale = nv ? 0.0123f : 1.0f;
      break;
    }
  }
  w.weight.data = w.data.data();
  w.weight.scales = w.scales.empty() ? nullptr : w.scales.data();
  return w;
}

}  // namespace baton::kernels
