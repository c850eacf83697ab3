// Whole hand-offs over a transport: rows arrive bit for bit, and their bytes
// are those of model.md 7.5.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/testing/status_matchers.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {
namespace {

using kv::Component;

constexpr absl::Duration kLong = absl::Minutes(5);

// model.md 7.5 written out for TestFormat: f32 rows, layers 0, 4, 128, 4.
std::map<Component, int64_t> FormulaBytes(int64_t n) {
  constexpr int64_t kHead = 8 * 4;   // bytes of a head_dim row
  constexpr int64_t kIndex = 4 * 4;  // bytes of an index row
  const int64_t halves = (n >= 4 ? 4 : 0) + 2 * (n % 4);
  return {{Component::kWindow, 4 * std::min<int64_t>(n, 127) * kHead},
          {Component::kC4, 2 * (n / 4) * kHead},
          {Component::kC4Index, 2 * (n / 4) * kIndex},
          {Component::kC128, (n / 128) * kHead},
          {Component::kC4Tail, 2 * halves * 2 * kHead},
          {Component::kC4IndexTail, 2 * halves * 2 * kIndex},
          {Component::kC128Tail, n % 128 == 0 ? 0 : 3 * kHead}};
}

std::map<Component, int64_t> NonZero(
    const std::vector<std::pair<Component, int64_t>>& bytes) {
  std::map<Component, int64_t> out;
  for (const auto& [component, n] : bytes) {
    if (n != 0) out[component] = n;
  }
  return out;
}

// Runs one hand-off to its end; RowsComplete after each chunk.
void RunHandoff(HandoffPair* pair, uint64_t id, int64_t tokens, int64_t chunk,
                int64_t started_at = 0) {
  SCOPED_TRACE(::testing::Message() << tokens << " tokens, chunks of " << chunk
                                    << ", started at " << started_at);
  const absl::Time deadline = pair->clock->Now() + kLong;
  const HandoffId handoff = TestHandoff(id);
  const Expectation expectation =
      TestExpectation(pair->to.get(), handoff, tokens, 1, deadline);
  pair->to->store.Poison();
  ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                       pair->to->receiver->Reserve(expectation));
  const SendRequest request =
      TestSendRequest(pair->from.get(), ticket, tokens, 0, deadline);
  pair->from->store.Fill(request.sequence, tokens, id);
  bool started = false;
  for (int64_t done = chunk; done < tokens; done += chunk) {
    if (!started && done >= started_at) {
      ASSERT_OK(pair->from->sender->Start(request));
      started = true;
    }
    if (started) pair->from->sender->RowsComplete(handoff, done);
  }
  if (!started) {
    ASSERT_OK(pair->from->sender->Start(request));
  }
  pair->from->sender->Seal(handoff, TestSeal(handoff, id));

  const auto verified =
      pair->to->log->Await(handoff, ReceiverEventKind::kVerified);
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->last_logits, TestLogits(id));
  EXPECT_EQ(pair->to->receiver->Commit(handoff, 1), CommitResult::kCommitted);
  EXPECT_TRUE(
      pair->to->log->Await(handoff, ReceiverEventKind::kQuiet).has_value());
  EXPECT_TRUE(
      pair->from->log->Await(handoff, SenderEventKind::kCommitted).has_value());
  EXPECT_TRUE(
      pair->from->log->Await(handoff, SenderEventKind::kQuiet).has_value());
  EXPECT_TRUE(pair->to->store.Rows(expectation.sequence, tokens) ==
              pair->from->store.Rows(request.sequence, tokens))
      << "rows differ";
}

TEST(RoundTripTest, MovesEveryLengthWithTheBytesOfTheFormula) {
  HandoffPair pair;
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n <= 300; ++n) lengths.push_back(n);
  for (const int64_t n : {511, 512, 513, 1023, 1024, 1025}) {
    lengths.push_back(n);
  }
  std::map<Component, int64_t> expected;
  uint64_t id = 1;
  for (const int64_t n : lengths) {
    RunHandoff(&pair, id++, n, /*chunk=*/256);
    if (::testing::Test::HasFatalFailure()) return;
    for (const auto& [component, bytes] : FormulaBytes(n)) {
      expected[component] += bytes;
    }
    // Both sides count exactly what moved.
    std::map<Component, int64_t> nonzero;
    for (const auto& [component, bytes] : expected) {
      if (bytes != 0) nonzero[component] = bytes;
    }
    ASSERT_EQ(NonZero(pair.to->receiver->stats().bytes), nonzero) << n;
    ASSERT_EQ(NonZero(pair.from->sender->stats().bytes), nonzero) << n;
  }
  EXPECT_EQ(pair.to->receiver->stats().segments_dropped, 0);
  EXPECT_EQ(pair.from->sender->stats().links_up, 1);
  EXPECT_THAT(pair.to->receiver->stats().failures, ::testing::IsEmpty());
}

TEST(RoundTripTest, ChunksOfAnySizeAndLateStartGiveTheSameRows) {
  HandoffPair pair(Clock::Real(), /*max_segment_bytes=*/512);
  uint64_t id = 1000;
  for (const int64_t tokens : {1, 3, 4, 127, 128, 129, 255, 256, 257, 513}) {
    for (const int64_t chunk : {1, 3, 4, 127, 128, 129, 256}) {
      RunHandoff(&pair, id++, tokens, chunk);
      if (::testing::Test::HasFatalFailure()) return;
    }
    RunHandoff(&pair, id++, tokens, 64, /*started_at=*/tokens / 2);
  }
}

TEST(RoundTripTest, SegmentsOfFewRowsWork) {
  HandoffPair pair(Clock::Real(), /*max_segment_bytes=*/96);
  RunHandoff(&pair, 1, 257, 256);
  EXPECT_GT(pair.from->sender->stats().segments, 200);
}

}  // namespace
}  // namespace baton::handoff
