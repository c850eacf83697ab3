#include "common/handoff/row_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/random.h"
#include "common/handoff/segment_plan.h"
#include "common/testing/status_matchers.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {
namespace {

using baton::testing::StatusIs;
using kv::Component;
using ::testing::HasSubstr;
using transfer::Piece;

constexpr auto kLoss = absl::StatusCode::kDataLoss;

std::vector<Piece> AllRows(int64_t tokens) {
  std::vector<Piece> pieces;
  for (const kv::Region& region : kv::Regions(TestFormat())) {
    for (const kv::RowRange& rows :
         kv::CompleteRows(TestFormat(), region.component, tokens)) {
      pieces.push_back({region, rows});
    }
  }
  return pieces;
}

TEST(RowLedgerTest, IsCompleteWithEveryRowOnceInAnyOrder) {
  SeededRandom random(5);
  for (const int64_t tokens : {0, 1, 3, 4, 5, 127, 128, 129, 256, 259}) {
    std::vector<Piece> single;
    for (const Piece& piece : AllRows(tokens)) {
      for (int64_t i = 0; i < piece.rows.count; ++i) {
        single.push_back(
            {piece.region,
             {.first = piece.rows.first + i * piece.rows.stride, .count = 1}});
      }
    }
    for (size_t i = single.size(); i > 1; --i) {
      std::swap(single[i - 1], single[random.Uint64() % i]);
    }
    RowLedger ledger(TestFormat(), tokens);
    for (const Piece& piece : single) {
      EXPECT_FALSE(ledger.Complete().ok());
      ASSERT_OK(ledger.Claim({piece}));
    }
    EXPECT_OK(ledger.Complete()) << tokens;
    for (const Piece& piece : single) {
      EXPECT_THAT(ledger.Claim({piece}), StatusIs(kLoss, HasSubstr("twice")));
    }
  }
}

TEST(RowLedgerTest, RefusesRowsThatTheSequenceDoesNotHave) {
  struct Case {
    Piece piece;
    const char* what;
  };
  // 300 tokens: window rows 173 .. 299, 75 c4 rows, 2 c128 rows, tail 2.
  const std::vector<Case> cases = {
      {{{0, Component::kWindow}, {172, 1, 1}}, "before the window"},
      {{{0, Component::kWindow}, {299, 2, 1}}, "after the window"},
      {{{1, Component::kC4}, {75, 1, 1}}, "an incomplete row"},
      {{{1, Component::kC4}, {0, 2, 75}}, "a stride beyond"},
      {{{1, Component::kC4}, {1, 2, INT64_MAX}}, "a stride that overflows"},
      {{{2, Component::kC128}, {2, 1, 1}}, "an incomplete row"},
      {{{2, Component::kC128Tail}, {1, 1, 1}}, "another tail"},
      {{{1, Component::kC4Tail}, {593, 1, 1}}, "half B of the last window"},
  };
  for (const Case& c : cases) {
    RowLedger ledger(TestFormat(), 300);
    EXPECT_THAT(ledger.Claim({c.piece}),
                StatusIs(kLoss, HasSubstr("not expected")))
        << c.what;
  }
}

TEST(RowLedgerTest, ShapeIsCheckedWithoutOverflow) {
  const kv::StateFormat format = TestFormat();
  const Piece good{{1, Component::kC4}, {0, 2, 1}};  // 32 bytes a row
  EXPECT_OK(RowLedger::CheckShape(format, {good}, 64));
  for (const int64_t bytes : {63, 65, 96, 0}) {
    EXPECT_THAT(RowLedger::CheckShape(format, {good}, bytes), StatusIs(kLoss))
        << bytes;
  }
  const std::vector<Piece> bad = {
      {{1, Component::kC4}, {0, INT64_MAX, 1}},
      {{1, Component::kC4}, {0, 0, 1}},
      {{1, Component::kC4}, {0, -2, 1}},
      {{1, Component::kC4}, {-1, 2, 1}},
      {{1, Component::kC4}, {0, 2, 0}},
      {{0, Component::kC4}, {0, 2, 1}},
      {{4, Component::kWindow}, {0, 2, 1}},
      {{-1, Component::kWindow}, {0, 2, 1}},
      {{1, static_cast<Component>(9)}, {0, 2, 1}},
      {{1, Component::kC128}, {0, 2, 1}},
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THAT(RowLedger::CheckShape(format, {bad[i]}, 64), StatusIs(kLoss))
        << i;
  }
}

TEST(SegmentPlanTest, TakesEveryRowOnceWhateverTheChunksAndSegments) {
  for (const int64_t tokens : {0, 1, 4, 127, 128, 129, 300}) {
    for (const int64_t chunk : {1, 3, 100, 256}) {
      for (const int64_t max_bytes : {96, 100, 333, 4096}) {
        SegmentPlan plan(TestFormat());
        RowLedger ledger(TestFormat(), tokens);
        const auto drain = [&] {
          while (!plan.empty()) {
            const int64_t before = plan.bytes();
            const auto pieces = plan.Take(max_bytes);
            const int64_t bytes = before - plan.bytes();
            ASSERT_GT(bytes, 0);
            ASSERT_LE(bytes, max_bytes);
            ASSERT_OK(RowLedger::CheckShape(TestFormat(), pieces, bytes));
            ASSERT_OK(ledger.Claim(pieces));
          }
        };
        for (int64_t done = chunk; done < tokens; done += chunk) {
          plan.AddGrowing(done);
          if (done % 2 == 0) drain();
        }
        plan.AddRest(tokens);
        drain();
        EXPECT_EQ(plan.bytes(), 0);
        EXPECT_OK(ledger.Complete()) << tokens << " " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace baton::handoff
