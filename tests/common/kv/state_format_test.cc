#include "common/kv/state_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/testing/status_matchers.h"

namespace baton::kv {
namespace {

using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StateGeometry Geometry() {
  return {.ratios = {0, 4, 128},
          .head_dim = 512,
          .index_head_dim = 128,
          .window_tokens = 128,
          .window_capacity = 128};
}

StateFormat Format() { return StateFormatFromName("f32", Geometry()).value(); }

std::set<int64_t> Rows(const StateFormat& format, Component component,
                       int64_t processed) {
  std::set<int64_t> rows;
  int64_t count = 0;
  for (const RowRange& range : CompleteRows(format, component, processed)) {
    EXPECT_GT(range.count, 0) << "empty ranges are left out";
    for (int64_t i = 0; i < range.count; ++i) {
      rows.insert(range.first + i * range.stride);
      ++count;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(rows.size()), count) << "a row twice";
  return rows;
}

// What model.md 7.5 and 5.7 say, from the side of the reader: simulates every
// later query and collects which inputs of the first `n` tokens it reads.
struct Needed {
  std::set<int64_t> window, c4, c128, c4_tail, c128_tail;
};

Needed NeededBySimulation(int64_t n) {
  Needed needed;
  for (int64_t t = n; t < n + 300; ++t) {
    for (int64_t p = std::max<int64_t>(0, t - 127); p <= t; ++p) {
      if (p < n) needed.window.insert(p);
    }
    for (int64_t w = 0; w < (t + 1) / 4; ++w) {
      if (4 * w + 3 < n) {
        needed.c4.insert(w);  // complete: crosses as a row
        continue;
      }
      // Not complete: pooled later, from half A of tokens 4(w-1)..4w-1 and
      // half B of 4w..4w+3.
      for (int64_t p = 4 * (w - 1); p < 4 * w; ++p) {
        if (p >= 0 && p < n) needed.c4_tail.insert(2 * p);
      }
      for (int64_t p = 4 * w; p < 4 * w + 4; ++p) {
        if (p < n) needed.c4_tail.insert(2 * p + 1);
      }
    }
    for (int64_t w = 0; w < (t + 1) / 128; ++w) {
      if (128 * w + 127 < n) {
        needed.c128.insert(w);
      } else if (128 * w < n) {
        needed.c128_tail.insert(w);
      }
    }
  }
  return needed;
}

TEST(CompleteRowsTest, AreExactlyTheRowsThatLaterQueriesRead) {
  const StateFormat format = Format();
  for (int64_t n = 0; n <= 600; ++n) {
    SCOPED_TRACE(n);
    const Needed needed = NeededBySimulation(n);
    EXPECT_EQ(Rows(format, Component::kWindow, n), needed.window);
    EXPECT_EQ(Rows(format, Component::kC4, n), needed.c4);
    EXPECT_EQ(Rows(format, Component::kC4Index, n), needed.c4);
    EXPECT_EQ(Rows(format, Component::kC128, n), needed.c128);
    EXPECT_EQ(Rows(format, Component::kC4Tail, n), needed.c4_tail);
    EXPECT_EQ(Rows(format, Component::kC4IndexTail, n), needed.c4_tail);
    EXPECT_EQ(Rows(format, Component::kC128Tail, n), needed.c128_tail);
  }
}

TEST(CompleteRowsTest, GrowWithoutLosingARow) {
  const StateFormat format = Format();
  for (const Component component :
       {Component::kC4, Component::kC4Index, Component::kC128}) {
    for (int64_t n = 1; n <= 600; ++n) {
      const std::set<int64_t> before = Rows(format, component, n - 1);
      const std::set<int64_t> after = Rows(format, component, n);
      for (const int64_t row : before) EXPECT_TRUE(after.contains(row)) << n;
    }
  }
}

TEST(CompleteRowsTest, NameTheEdgesOfModelMd75) {
  const StateFormat format = Format();
  EXPECT_TRUE(CompleteRows(format, Component::kWindow, 0).empty());
  EXPECT_THAT(CompleteRows(format, Component::kWindow, 127),
              ElementsAre(RowRange{.first = 0, .count = 127}));
  EXPECT_THAT(CompleteRows(format, Component::kWindow, 128),
              ElementsAre(RowRange{.first = 1, .count = 127}));
  // Half A of the last window goes although no token is open.
  EXPECT_THAT(CompleteRows(format, Component::kC4Tail, 8),
              ElementsAre(RowRange{.first = 8, .count = 4, .stride = 2}));
  EXPECT_THAT(CompleteRows(format, Component::kC4Tail, 6),
              ElementsAre(RowRange{.first = 0, .count = 4, .stride = 2},
                          RowRange{.first = 8, .count = 4}));
  EXPECT_TRUE(CompleteRows(format, Component::kC128Tail, 256).empty());
}

TEST(CompleteRowsTest, OpenTailRowsFitTheRingWithoutCollision) {
  const StateFormat format = Format();
  for (int64_t n = 0; n <= 600; ++n) {
    std::set<int64_t> places;
    for (const int64_t row : Rows(format, Component::kC4Tail, n)) {
      EXPECT_TRUE(places.insert(row % 16).second) << n;
    }
  }
}

// model.md 7.5: minimal tail bytes C4 main <= 40,960 and index <= 10,240.
TEST(RowBytesTest, GiveTheTailBytesOfModelMd) {
  const StateFormat format = Format();
  const auto bytes = [&](Component component, int64_t n) {
    return CountRows(CompleteRows(format, component, n)) *
           RowBytes(format, component);
  };
  EXPECT_EQ(bytes(Component::kC4Tail, 7), 40960);
  EXPECT_EQ(bytes(Component::kC4IndexTail, 7), 10240);
  EXPECT_EQ(bytes(Component::kC4Tail, 8), 16384);
  EXPECT_EQ(bytes(Component::kC128Tail, 127), 6144);
}

TEST(RowBytesTest, FollowTheEncodings) {
  StateFormat format = Format();
  EXPECT_EQ(RowBytes(format, Component::kWindow), 2048);
  EXPECT_EQ(RowBytes(format, Component::kC4Index), 512);
  format.kv_row = RowEncoding::kBf16;
  EXPECT_EQ(RowBytes(format, Component::kC4), 1024);
  EXPECT_EQ(RowBytes(format, Component::kC128), 1024);
  EXPECT_EQ(RowBytes(format, Component::kC4Index), 512);
  format.index_row.encoding = RowEncoding::kBf16;
  EXPECT_EQ(RowBytes(format, Component::kC4Index), 256);
  EXPECT_EQ(RowBytes(format, Component::kC4Tail), 4096) << "tails stay fp32";
}

TEST(RegionsTest, ListEachLayersComponentsInOrder) {
  std::vector<std::string> names;
  for (const Region& region : Regions(Format())) {
    names.push_back(ToString(region));
  }
  EXPECT_THAT(names,
              ElementsAre("l0.window", "l1.window", "l1.c4", "l1.c4_index",
                          "l1.c4_tail", "l1.c4_index_tail", "l2.window",
                          "l2.c128", "l2.c128_tail"));
}

TEST(StateFormatTest, HashChangesWithEveryField) {
  std::set<Sha256Digest> hashes;
  const auto add = [&hashes](const StateFormat& format) {
    EXPECT_TRUE(hashes.insert(format.Hash()).second) << format.ToString();
  };
  const StateFormat base = Format();
  add(base);
  EXPECT_EQ(base.Hash(), Format().Hash());
  StateFormat format = base;
  format.kv_row = RowEncoding::kBf16;
  add(format);
  format = base;
  format.index_row.encoding = RowEncoding::kBf16;
  add(format);
  format = base;
  format.index_row.rotated = true;
  add(format);
  format = base;
  format.geometry.ratios = {0, 4, 4};
  add(format);
  format = base;
  format.geometry.ratios = {0, 4, 128, 0};
  add(format);
  format = base;
  format.geometry.head_dim = 256;
  add(format);
  format = base;
  format.geometry.index_head_dim = 64;
  add(format);
  format = base;
  format.geometry.window_tokens = 64;
  add(format);
  format = base;
  format.geometry.window_capacity = 136;
  add(format);
}

TEST(StateFormatTest, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(StateFormatFromName("fp8", Geometry()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected one of: f32, bf16")));
}

TEST(BlocksForTest, RoundsUpToBlocks) {
  for (const auto& [positions, blocks] :
       std::vector<std::pair<int64_t, int32_t>>{
           {0, 0}, {1, 1}, {255, 1}, {256, 1}, {257, 2}, {512, 2}, {513, 3}}) {
    EXPECT_EQ(BlocksFor(positions), blocks) << positions;
  }
}

}  // namespace
}  // namespace baton::kv
