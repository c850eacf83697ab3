#include "kernels/include/page_copy.h"

#include <cstring>

#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

constexpr int64_t kWordBytes = 16;

void CheckCopy(const PageCopyParams& params) {
  BATON_KERNEL_CHECK(
      params.num_rows >= 0 && params.first_row >= 0 && params.row_bytes > 0,
      "page_copy: negative range or empty rows");
  BATON_KERNEL_CHECK(params.num_rows == 0 || (params.rows.base != nullptr &&
                                              params.rows.rows_per_page > 0),
                     "page_copy: no pages");
  BATON_KERNEL_CHECK(
      params.rows.row_stride_bytes >= params.row_bytes || params.num_rows == 0,
      "page_copy: row stride is smaller than the row");
}

void CheckWords(int64_t row_bytes) {
  BATON_KERNEL_CHECK(row_bytes > 0 && row_bytes % kWordBytes == 0,
                     "checksum: row_bytes is not a multiple of 16");
}

// Finaliser of SplitMix64: a bijection in which every input bit moves about
// half of the output bits.
uint64_t Mix(uint64_t v) {
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
  return v ^ (v >> 31);
}

// Sum of the mixed words of one row. For a fixed (row, word) the inner mixes
// are bijections of each half of the word, so one changed word always changes
// the sum.
uint64_t RowSum(const unsigned char* row, int64_t index, int64_t row_bytes) {
  const uint64_t row_key =
      Mix(static_cast<uint64_t>(index) + 0x9E3779B97F4A7C15u);
  uint64_t sum = 0;
  for (int64_t offset = 0; offset < row_bytes; offset += kWordBytes) {
    uint64_t half[2];
    std::memcpy(half, row + offset, sizeof(half));
    const uint64_t key =
        row_key + static_cast<uint64_t>(offset) * 0xD1B54A32D192ED03u;
    sum += Mix(Mix(half[0] ^ key) + half[1]);
  }
  return sum;
}

}  // namespace

void GatherRows(const PageCopyParams& params) {
  CheckCopy(params);
  auto* buffer = static_cast<unsigned char*>(params.buffer);
  for (int64_t i = 0; i < params.num_rows; ++i) {
    std::memcpy(buffer + i * params.row_bytes,
                RowAddress(params.rows, params.first_row + i),
                static_cast<size_t>(params.row_bytes));
  }
}

void ScatterRows(const PageCopyParams& params) {
  CheckCopy(params);
  const auto* buffer = static_cast<const unsigned char*>(params.buffer);
  for (int64_t i = 0; i < params.num_rows; ++i) {
    std::memcpy(RowAddress(params.rows, params.first_row + i),
                buffer + i * params.row_bytes,
                static_cast<size_t>(params.row_bytes));
  }
}

uint64_t BufferChecksum(const void* buffer, int64_t first_row, int64_t num_rows,
                        int64_t row_bytes) {
  CheckWords(row_bytes);
  const auto* rows = static_cast<const unsigned char*>(buffer);
  uint64_t sum = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    sum += RowSum(rows + i * row_bytes, first_row + i, row_bytes);
  }
  return sum;
}

uint64_t RowsChecksum(const PageCopyParams& params) {
  CheckCopy(params);
  CheckWords(params.row_bytes);
  uint64_t sum = 0;
  for (int64_t i = 0; i < params.num_rows; ++i) {
    const int64_t row = params.first_row + i;
    sum +=
        RowSum(static_cast<const unsigned char*>(RowAddress(params.rows, row)),
               row, params.row_bytes);
  }
  return sum;
}

}  // namespace baton::kernels
