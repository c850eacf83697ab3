// Values of all E4M3 codes, for scales that are looked up one at a time.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/include/numeric.h"

namespace baton::kernels {

inline constexpr std::array<float, 256> kE4m3Table = [] {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    table[static_cast<size_t>(code)] = F32FromE4m3(static_cast<uint8_t>(code));
  }
  return table;
}();

}  // namespace baton::kernels
