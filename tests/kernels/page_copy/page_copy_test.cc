#include "kernels/include/page_copy.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace baton::kernels {
namespace {

constexpr int64_t kRowBytes = 48;

// A pool of 6 pages of 4 rows with gaps, or a ring of 8 rows.
struct Pool {
  std::vector<unsigned char> bytes = std::vector<unsigned char>(6 * 300, 0xEE);
  std::vector<int32_t> table = {4, 1, 5, 0};
  bool ring = false;

  PageCopyParams Params(int64_t first, int64_t count, void* buffer) {
    PageCopyParams p;
    p.rows = ring ? RowLayout{bytes.data(), 0, 64, nullptr, 8}
                  : RowLayout{bytes.data(), 300, 64, table.data(), 4};
    p.first_row = first;
    p.num_rows = count;
    p.row_bytes = kRowBytes;
    p.buffer = buffer;
    return p;
  }
};

TEST(PageCopyTest, ScatterThenGatherGivesTheRowsBack) {
  for (const bool ring : {false, true}) {
    for (const int64_t first : {0, 3, 4, 5}) {
      for (const int64_t count : {0, 1, 3, 4, 5, 8}) {
        Pool pool;
        pool.ring = ring;
        const auto rows =
            RandomBytes(static_cast<size_t>(count * kRowBytes), 7);
        std::vector<uint8_t> in(rows);
        std::vector<uint8_t> out(rows.size());
        ScatterRows(pool.Params(first, count, in.data()));
        GatherRows(pool.Params(first, count, out.data()));
        EXPECT_EQ(out, rows);
        EXPECT_EQ(in, rows);
        // Bytes outside the rows are untouched.
        const auto changed =
            std::count_if(pool.bytes.begin(), pool.bytes.end(),
                          [](unsigned char b) { return b != 0xEE; });
        EXPECT_LE(changed, count * kRowBytes);
      }
    }
  }
}

TEST(PageCopyTest, RowsGoWhereTheBlockTableSays) {
  Pool pool;
  std::vector<uint8_t> row(kRowBytes, 0x11);
  ScatterRows(pool.Params(/*first=*/9, 1, row.data()));
  const size_t at = 5 * 300 + 1 * 64;  // block 2 -> page 5, row 1
  EXPECT_EQ(pool.bytes[at], 0x11);
  EXPECT_EQ(pool.bytes[at + kRowBytes - 1], 0x11);
  EXPECT_EQ(pool.bytes[at - 1], 0xEE);
  EXPECT_EQ(pool.bytes[at + kRowBytes], 0xEE);
}

TEST(ChecksumTest, DoesNotDependOnLayoutGroupingOrOrder) {
  const auto rows = RandomBytes(8 * kRowBytes, 3);
  const uint64_t want = BufferChecksum(rows.data(), 2, 8, kRowBytes);
  for (const bool ring : {false, true}) {
    Pool pool;
    pool.ring = ring;
    std::vector<uint8_t> in(rows);
    ScatterRows(pool.Params(2, 8, in.data()));
    EXPECT_EQ(RowsChecksum(pool.Params(2, 8, nullptr)), want);
  }
  uint64_t parts = 0;
  for (int64_t i = 7; i >= 0; --i) {
    parts += BufferChecksum(rows.data() + i * kRowBytes, 2 + i, 1, kRowBytes);
  }
  EXPECT_EQ(parts, want);
  EXPECT_EQ(BufferChecksum(rows.data(), 0, 0, kRowBytes), 0u);
}

TEST(ChecksumTest, SeesEveryFlippedBit) {
  auto rows = RandomBytes(4 * kRowBytes, 5);
  const uint64_t want = BufferChecksum(rows.data(), 0, 4, kRowBytes);
  std::set<uint64_t> seen = {want};
  for (size_t byte = 0; byte < rows.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      rows[byte] = static_cast<uint8_t>(rows[byte] ^ (1 << bit));
      seen.insert(BufferChecksum(rows.data(), 0, 4, kRowBytes));
      rows[byte] = static_cast<uint8_t>(rows[byte] ^ (1 << bit));
    }
  }
  EXPECT_EQ(seen.size(), rows.size() * 8 + 1);
}

TEST(ChecksumTest, SeesSwappedRowsWordsAndHalves) {
  auto rows = RandomBytes(4 * kRowBytes, 6);
  const uint64_t want = BufferChecksum(rows.data(), 0, 4, kRowBytes);
  const auto swapped = [&](int64_t a, int64_t b, int64_t length) {
    auto copy = rows;
    std::swap_ranges(copy.begin() + a, copy.begin() + a + length,
                     copy.begin() + b);
    return BufferChecksum(copy.data(), 0, 4, kRowBytes);
  };
  EXPECT_NE(swapped(0, kRowBytes, kRowBytes), want);
  EXPECT_NE(swapped(0, 2 * kRowBytes, kRowBytes), want);
  EXPECT_NE(swapped(0, 16, 16), want);
  EXPECT_NE(swapped(0, 8, 8), want);
  EXPECT_NE(swapped(16, kRowBytes + 32, 16), want);
  EXPECT_NE(BufferChecksum(rows.data(), 1, 4, kRowBytes), want);
}

TEST(ChecksumTest, RowsOfZerosCount) {
  // A lost row must be seen even when it is all zeros.
  const std::vector<uint8_t> rows(3 * kRowBytes, 0);
  EXPECT_NE(BufferChecksum(rows.data(), 0, 3, kRowBytes),
            BufferChecksum(rows.data(), 0, 2, kRowBytes));
  EXPECT_NE(BufferChecksum(rows.data(), 0, 1, kRowBytes), 0u);
}

TEST(ChecksumTest, AlgorithmOneIsPinned) {
  // Both sides of a link may run different builds: the values are a format.
  // Computed by a separate program from the formula.
  std::vector<uint8_t> row(32);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<uint8_t>(i);
  }
  EXPECT_EQ(kChecksumAlgorithm, 1u);
  EXPECT_EQ(BufferChecksum(row.data(), 7, 1, 32), 0x7c4288bac20ea5du);
}

TEST(ChecksumDeathTest, RefusesRowsThatAreNotWords) {
  const std::vector<uint8_t> row(20);
  EXPECT_DEATH(BufferChecksum(row.data(), 0, 1, 20), "multiple of 16");
}

}  // namespace
}  // namespace baton::kernels
