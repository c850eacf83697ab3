// Encodings of cached rows and where a row lies: in pages found through a block
// table, or in a per-sequence ring. Shared by the operations that read or copy
// cached rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/include/numeric.h"

namespace baton::kernels {

// How the values of a cached row are stored (StateFormat kv_row, index_row).
enum class RowEncoding : uint8_t {
  kF32,   // 4 bytes per value
  kBf16,  // 2 bytes per value, rounded to nearest even
};

constexpr int64_t BytesPerValue(RowEncoding encoding) {
  return encoding == RowEncoding::kF32 ? 4 : 2;
}

// Writes n values of one row. `row` needs no alignment.
inline void EncodeRow(const float* values, int64_t n, RowEncoding encoding,
                      void* row) {
  if (encoding == RowEncoding::kF32) {
    std::memcpy(row, values, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  auto* out = static_cast<unsigned char*>(row);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = Bf16FromF32(values[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

// Reads n values of one row; the inverse of EncodeRow up to its rounding.
inline void DecodeRow(const void* row, int64_t n, RowEncoding encoding,
                      float* values) {
  if (encoding == RowEncoding::kF32) {
    std::memcpy(values, row, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const auto* in = static_cast<const unsigned char*>(row);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    values[i] = F32FromBf16(bits);
  }
}

// Address rule of the rows of one region of one sequence.
//   paged (block_table != null): row w lies in page block_table[w /
//     rows_per_page] at index w % rows_per_page.
//   ring (block_table == null): row w lies at index w % rows_per_page of the
//     one ring at `base` (rows_per_page = ring capacity).
struct RowLayout {
  void* base = nullptr;           // page 0 of the pool, or the ring
  int64_t page_stride_bytes = 0;  // between pages; unused for a ring
  int64_t row_stride_bytes = 0;   // between rows of one page or ring
  const int32_t* block_table = nullptr;
  int32_t rows_per_page = 0;
};

inline void* RowAddress(const RowLayout& layout, int64_t row) {
  auto* base = static_cast<unsigned char*>(layout.base);
  const int64_t index = row % layout.rows_per_page;
  if (layout.block_table != nullptr) {
    base += layout.block_table[row / layout.rows_per_page] *
            layout.page_stride_bytes;
  }
  return base + index * layout.row_stride_bytes;
}

}  // namespace baton::kernels
