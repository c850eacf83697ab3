// Gather and scatter of cached rows between pages or rings and a contiguous
// buffer, with an order-independent checksum (hazards.md I11).
//
// Rows are the unit: buffer row i is row first_row + i of the region, row_bytes
// bytes each. row_bytes is a multiple of 16 for the checksum.
//
// checksum = sum mod 2^64, over every row and every 16-byte word of it, of
//   mix(row index, word index, word). It does not depend on the order or the
// grouping in which rows are visited (sums of parts add up), so a gather kernel
// can compute it with atomics, and it is computed over the logical row index,
// so page layouts may differ between the two sides. It detects any single
// changed word and any exchange of words or rows; it is no protection against
// an adversary. Algorithm id: kChecksumAlgorithm.
// Contract: bit-exact (kernels_page_copy_test).
#pragma once

#include <cstdint>

#include "kernels/include/row_layout.h"

namespace baton::kernels {

inline constexpr uint32_t kChecksumAlgorithm = 1;

struct PageCopyParams {
  RowLayout rows;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  void* buffer = nullptr;  // [num_rows, row_bytes] contiguous
};

void GatherRows(const PageCopyParams& params);   // rows -> buffer
void ScatterRows(const PageCopyParams& params);  // buffer -> rows

// Of rows in a contiguous buffer; row i has index first_row + i.
uint64_t BufferChecksum(const void* buffer, int64_t first_row, int64_t num_rows,
                        int64_t row_bytes);

// Of rows where they lie. `params.buffer` is not used.
uint64_t RowsChecksum(const PageCopyParams& params);

}  // namespace baton::kernels
