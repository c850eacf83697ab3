#include "common/kv/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "common/base/random.h"
#include "common/testing/status_matchers.h"

namespace baton::kv {
namespace {

using ::baton::testing::StatusIs;

StateFormat Format(absl::string_view name = "f32",
                   int32_t window_capacity = 128) {
  const StateGeometry geometry = {.ratios = {0, 4, 128},
                                  .head_dim = 512,
                                  .index_head_dim = 128,
                                  .window_tokens = 128,
                                  .window_capacity = window_capacity};
  return StateFormatFromName(name, geometry).value();
}

std::vector<std::byte> RandomBytes(SeededRandom* random, int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random->Uint64());
  }
  return bytes;
}

TEST(KvStoreTest, RefusesEmptySizes) {
  EXPECT_THAT(KvStore::Create(Format(), 0, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(KvStore::Create(Format(), 1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(KvStore::Create(Format("f32", /*window_capacity=*/127), 1, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(KvStoreTest, BytesFollowTheGeometry) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 3, 2));
  EXPECT_EQ(store->page_bytes(), 3 * (64 * 2048 + 64 * 512 + 2 * 2048));
  EXPECT_EQ(store->slot_bytes(), 2 * (3 * 128 * 2048 + 65536 + 16384 + 6144));
  EXPECT_EQ(store->RowsPerPage(Component::kC4), 64);
  EXPECT_EQ(store->RowsPerPage(Component::kC4Index), 64);
  EXPECT_EQ(store->RowsPerPage(Component::kC128), 2);
}

// Every region, both formats, two stores whose block tables and ring capacities
// differ: rows arrive where the other side's addresses say.
TEST(KvStoreTest, GatherAndScatterRoundTripBetweenLayouts) {
  for (const absl::string_view name : {"f32", "bf16"}) {
    ASSERT_OK_AND_ASSIGN(const auto from, KvStore::Create(Format(name), 4, 2));
    ASSERT_OK_AND_ASSIGN(const auto to,
                         KvStore::Create(Format(name, 136), 5, 3));
    const std::vector<BlockId> from_blocks = {BlockId{2}, BlockId{0},
                                              BlockId{3}};
    const std::vector<BlockId> to_blocks = {BlockId{4}, BlockId{1}, BlockId{0}};
    const SequenceView source{from_blocks, 1};
    const SequenceView target{to_blocks, 2};
    SeededRandom random(7);
    for (const int64_t processed : {1, 4, 127, 128, 129, 255, 256, 257, 611}) {
      for (const Region& region : Regions(from->format())) {
        SCOPED_TRACE(::testing::Message()
                     << name << " " << ToString(region) << " " << processed);
        const auto rows =
            CompleteRows(from->format(), region.component, processed);
        const int64_t bytes =
            CountRows(rows) * RowBytes(from->format(), region.component);
        const std::vector<std::byte> data = RandomBytes(&random, bytes);
        from->ScatterRows(region, source, rows, data.data());
        std::vector<std::byte> wire(data.size());
        from->GatherRows(region, source, rows, wire.data());
        EXPECT_TRUE(wire == data);
        to->ScatterRows(region, target, rows, wire.data());
        std::vector<std::byte> back(data.size());
        to->GatherRows(region, target, rows, back.data());
        EXPECT_TRUE(back == data);
        EXPECT_EQ(from->ChecksumRows(region, source, rows),
                  to->ChecksumRows(region, target, rows));
      }
    }
  }
}

TEST(KvStoreTest, RowsLieWhereThePointersSay) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 3, 2));
  const std::vector<BlockId> blocks = {BlockId{2}, BlockId{1}};
  const SequenceView sequence{blocks, 1};
  SeededRandom random(3);
  struct Case {
    Region region;
    int64_t row;
    std::byte* expected;
  };
  const Region c4{1, Component::kC4};
  const Region c128{2, Component::kC128};
  const Region window{0, Component::kWindow};
  for (const Case& test : std::vector<Case>{
           {c4, 0, store->PageRow(c4, BlockId{2}, 0)},
           {c4, 63, store->PageRow(c4, BlockId{2}, 63)},
           {c4, 64, store->PageRow(c4, BlockId{1}, 0)},
           {c4, 65, store->PageRow(c4, BlockId{0}, 1) + store->PageStride(c4)},
           {c128, 3, store->PageRow(c128, BlockId{1}, 1)},
           {window, 130, store->SlotData(window, 1) + 2 * 2048},
           {window, 127, store->SlotData(window, 1) + 127 * 2048}}) {
    SCOPED_TRACE(::testing::Message()
                 << ToString(test.region) << " " << test.row);
    const std::vector<RowRange> rows = {{.first = test.row, .count = 1}};
    const auto data =
        RandomBytes(&random, RowBytes(store->format(), test.region.component));
    store->ScatterRows(test.region, sequence, rows, data.data());
    EXPECT_EQ(std::memcmp(test.expected, data.data(), data.size()), 0);
  }
}

// The layout that kernels/include/compressor.h fixes: [token % 8][kvraw, g]
// [half A, half B][d].
TEST(KvStoreTest, HalfRowsLieInTheCompressorsState) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 1, 2));
  const Region tail{1, Component::kC4Tail};
  const SequenceView sequence{{}, 1};
  auto* const state = reinterpret_cast<float*>(store->SlotData(tail, 1));
  for (int i = 0; i < 8 * 4 * 512; ++i) state[i] = static_cast<float>(i);
  std::vector<float> row(2 * 512);
  for (const auto& [position, half] :
       std::vector<std::pair<int64_t, int>>{{0, 0}, {9, 0}, {9, 1}, {15, 1}}) {
    SCOPED_TRACE(::testing::Message() << position << " half " << half);
    store->GatherRows(tail, sequence,
                      {{.first = 2 * position + half, .count = 1}},
                      reinterpret_cast<std::byte*>(row.data()));
    const auto token = static_cast<float>(position % 8 * 4 * 512);
    const auto offset = static_cast<float>(half * 512);
    EXPECT_EQ(row[0], token + offset);
    EXPECT_EQ(row[511], token + offset + 511.0f);
    EXPECT_EQ(row[512], token + 1024.0f + offset);
    EXPECT_EQ(row[1023], token + 1024.0f + offset + 511.0f);
  }
}

TEST(KvStoreTest, ChecksumSeesContentAndPlaceButNotOrder) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 2, 1));
  const std::vector<BlockId> blocks = {BlockId{0}, BlockId{1}};
  const SequenceView sequence{blocks, 0};
  const Region region{1, Component::kC4};
  SeededRandom random(11);
  const std::vector<RowRange> all = {{.first = 0, .count = 100}};
  auto data = RandomBytes(&random, 100 * 2048);
  store->ScatterRows(region, sequence, all, data.data());
  const uint64_t sum = store->ChecksumRows(region, sequence, all);
  EXPECT_EQ(sum, store->ChecksumRows(
                     region, sequence,
                     {{.first = 40, .count = 60}, {.first = 0, .count = 40}}));
  for (const int64_t byte : {0, 1, 2047, 2048, 99 * 2048 + 7, 100 * 2048 - 1}) {
    auto flipped = data;
    flipped[static_cast<size_t>(byte)] ^= std::byte{1};
    store->ScatterRows(region, sequence, all, flipped.data());
    EXPECT_NE(store->ChecksumRows(region, sequence, all), sum) << byte;
  }
  // Two rows exchanged.
  std::swap_ranges(data.begin(), data.begin() + 2048, data.begin() + 2048);
  store->ScatterRows(region, sequence, all, data.data());
  EXPECT_NE(store->ChecksumRows(region, sequence, all), sum);
}

TEST(KvStoreTest, PoisonIsNanAndStaysInItsBlockOrSlot) {
  for (const absl::string_view name : {"f32", "bf16"}) {
    ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(name), 3, 3));
    store->PoisonBlock(BlockId{1});
    store->PoisonSlot(1);
    for (const Region& region : Regions(store->format())) {
      SCOPED_TRACE(ToString(region));
      const auto row_bytes =
          static_cast<size_t>(RowBytes(store->format(), region.component));
      for (const int32_t i : {0, 1, 2}) {
        const std::byte* const row = IsGrowing(region.component)
                                         ? store->PageRow(region, BlockId{i}, 1)
                                         : store->SlotData(region, i);
        for (size_t b = 0; b < row_bytes; b += 4) {
          float value = 0;
          std::memcpy(&value, row + b, 4);
          ASSERT_EQ(std::isnan(value), i == 1);
        }
      }
    }
    store->ResetSlot(1);
    const Region window{0, Component::kWindow};
    EXPECT_EQ(*store->SlotData(window, 1), std::byte{0});
  }
}

TEST(KvStoreTest, CopiesAllRegionsOfABlockAndASlot) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 3, 3));
  const std::vector<BlockId> a = {BlockId{0}};
  const std::vector<BlockId> b = {BlockId{2}};
  SeededRandom random(5);
  for (const Region& region : Regions(store->format())) {
    const auto rows = CompleteRows(store->format(), region.component, 255);
    const auto data = RandomBytes(
        &random, CountRows(rows) * RowBytes(store->format(), region.component));
    store->ScatterRows(region, {a, 0}, rows, data.data());
  }
  store->CopyBlock(BlockId{0}, BlockId{2});
  store->CopySlot(0, 1);
  for (const Region& region : Regions(store->format())) {
    const auto rows = CompleteRows(store->format(), region.component, 255);
    EXPECT_EQ(store->ChecksumRows(region, {a, 0}, rows),
              store->ChecksumRows(region, {b, 1}, rows))
        << ToString(region);
  }
}

TEST(KvStoreDeathTest, RowBeyondTheBlockTableIsABug) {
  ASSERT_OK_AND_ASSIGN(const auto store, KvStore::Create(Format(), 3, 3));
  const std::vector<BlockId> blocks = {BlockId{0}};
  std::vector<std::byte> data(2048);
  EXPECT_DEATH(store->GatherRows({1, Component::kC4}, {blocks, 0},
                                 {{.first = 64, .count = 1}}, data.data()),
               "beyond the block table");
}

}  // namespace
}  // namespace baton::kv
