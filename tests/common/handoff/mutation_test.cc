// Every way in which a sender can be wrong ends as a clear status, the attempt
// after it succeeds, and the table of kills is printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/str_format.h"
#include "common/base/fault_point.h"
#include "common/testing/status_matchers.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {
namespace {

using request::ErrorReason;

struct Mutation {
  std::string fault;
  std::string detail;  // empty: any
  int64_t tokens = 0;
  absl::StatusCode code = absl::StatusCode::kDataLoss;
  ErrorReason reason = ErrorReason::kHandoffRejected;
  std::string message;  // part of it
};

std::vector<Mutation> Mutations() {
  const auto loss = absl::StatusCode::kDataLoss;
  const auto differs = absl::StatusCode::kFailedPrecondition;
  const auto rejected = ErrorReason::kHandoffRejected;
  std::vector<Mutation> all;
  for (const kv::Region& region : kv::Regions(TestFormat())) {
    const std::string name = kv::ToString(region);
    // 259 tokens: every region has rows.
    all.push_back(
        {"handoff.omit_region", name, 259, loss, rejected, name + ": 0 of"});
    all.push_back({"handoff.omit_region_rows", name, 259, loss, rejected,
                   name + ": 0 of"});
    all.push_back({"handoff.flip_byte", name, 259, loss, rejected,
                   "checksum of " + name});
    all.push_back(
        {"handoff.duplicate_rows", name, 259, loss, rejected, "arrived twice"});
    // The others send one row at a time here.
    if (region.component != kv::Component::kC128Tail &&
        region.component != kv::Component::kC128) {
      all.push_back({"handoff.swap_rows", name, 259, loss, rejected,
                     "checksum of " + name});
    }
  }
  for (const char* const name : {"l1.c4_tail", "l1.c4_index_tail"}) {
    all.push_back(
        {"handoff.drop_half_a", name, 256, loss, rejected, "0 of 4 rows"});
    for (const int64_t tokens : {256, 257, 259}) {
      all.push_back(
          {"handoff.tail_off_by_one", name, tokens, loss, rejected, name});
    }
  }
  all.push_back({"handoff.tail_off_by_one", "l2.c128_tail", 256, loss, rejected,
                 "l2.c128_tail"});
  all.push_back({"handoff.wrong_prompt_hash", "", 200, differs,
                 ErrorReason::kMismatch, "prompt hash"});
  all.push_back({"handoff.wrong_token_count", "", 200, differs,
                 ErrorReason::kMismatch, "199 tokens"});
  all.push_back({"handoff.wrong_state_format", "", 200, differs,
                 ErrorReason::kMismatch, "StateFormat"});
  all.push_back({"handoff.short_logits", "", 200, loss, rejected, "36 logits"});
  all.push_back({"handoff.nan_logits", "", 200, loss, rejected, "finite"});
  all.push_back(
      {"handoff.wrong_logits", "", 200, loss, rejected, "last logits"});
  all.push_back({"transfer.corrupt_segment", "", 200, loss, rejected,
                 "checksum of segment"});
  all.push_back({"transfer.drop_link", "", 200, absl::StatusCode::kUnavailable,
                 ErrorReason::kWorkerLost, "link of the prefill lost"});
  return all;
}

class MutationTest : public ::testing::Test {
 protected:
  ~MutationTest() override { FaultRegistry::Global().DisarmAll(); }

  // Sends one attempt; the caller awaits its end.
  SendRequest Send(HandoffPair* pair, const Ticket& ticket, int64_t tokens) {
    const SendRequest request =
        TestSendRequest(pair->from.get(), ticket, tokens, 0,
                        pair->clock->Now() + absl::Minutes(5));
    pair->from->store.Fill(request.sequence, tokens, ticket.handoff.lo);
    EXPECT_OK(pair->from->sender->Start(request));
    pair->from->sender->RowsComplete(ticket.handoff, tokens / 2);
    pair->from->sender->Seal(ticket.handoff, TestSeal(ticket.handoff, 7));
    return request;
  }

  void ExpectGoodAttempt(HandoffPair* pair, const Expectation& expectation,
                         Attempt attempt) {
    const HandoffId handoff = expectation.handoff;
    ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                         pair->to->receiver->Reticket(handoff, attempt));
    const SendRequest request = Send(pair, ticket, expectation.prompt_tokens);
    ASSERT_TRUE(pair->to->log->Await(handoff, ReceiverEventKind::kVerified)
                    .has_value());
    EXPECT_EQ(pair->to->receiver->Commit(handoff, attempt),
              CommitResult::kCommitted);
    EXPECT_TRUE(pair->from->log->Await(handoff, SenderEventKind::kCommitted)
                    .has_value());
    EXPECT_TRUE(
        pair->to->store.Rows(expectation.sequence, expectation.prompt_tokens) ==
        pair->from->store.Rows(request.sequence, expectation.prompt_tokens));
  }
};

TEST_F(MutationTest, EachMutationIsKilledAndTheNextAttemptSucceeds) {
  HandoffPair pair(Clock::Real(), /*max_segment_bytes=*/2048);
  std::printf("%-27s %-16s %6s  %-19s %s\n", "mutation", "detail", "tokens",
              "status", "message");
  uint64_t id = 1;
  for (const Mutation& mutation : Mutations()) {
    SCOPED_TRACE(mutation.fault + " " + mutation.detail);
    int fires = 1;
    FaultRegistry::Global().Arm(mutation.fault, [&](absl::string_view detail) {
      if (!mutation.detail.empty() && detail != mutation.detail) {
        return false;
      }
      // A link drops and a segment breaks once; wrong senders stay wrong.
      return mutation.fault.rfind("transfer.", 0) != 0 || fires-- > 0;
    });
    const HandoffId handoff = TestHandoff(id++);
    const Expectation expectation =
        TestExpectation(pair.to.get(), handoff, mutation.tokens, 2,
                        pair.clock->Now() + absl::Minutes(5));
    pair.to->store.Poison();
    ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                         pair.to->receiver->Reserve(expectation));
    Send(&pair, ticket, mutation.tokens);
    const auto failed =
        pair.to->log->Await(handoff, ReceiverEventKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->status.code(), mutation.code) << failed->status;
    EXPECT_EQ(request::InfoOf(failed->status).reason, mutation.reason);
    EXPECT_THAT(std::string(failed->status.message()),
                ::testing::HasSubstr(mutation.message));
    const auto told = pair.from->log->Await(handoff, SenderEventKind::kFailed);
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->status.code(), mutation.code) << told->status;
    EXPECT_EQ(request::InfoOf(told->status).reason, mutation.reason);
    EXPECT_TRUE(
        pair.from->log->Await(handoff, SenderEventKind::kQuiet).has_value());
    EXPECT_EQ(pair.to->receiver->Commit(handoff, 1),
              CommitResult::kNotVerified);
    std::printf("%-27s %-16s %6d  %-19s %s\n", mutation.fault.c_str(),
                mutation.detail.c_str(), static_cast<int>(mutation.tokens),
                absl::StatusCodeToString(failed->status.code()).c_str(),
                std::string(failed->status.message()).c_str());
    FaultRegistry::Global().Disarm(mutation.fault);
    ExpectGoodAttempt(&pair, expectation, 2);
    if (HasFatalFailure()) return;
  }
}

TEST_F(MutationTest, ManifestThatClaimsUnsentRowsIsKilled) {
  HandoffPair pair;
  for (const kv::Region& region : kv::Regions(TestFormat())) {
    SCOPED_TRACE(kv::ToString(region));
    const auto here = [&](absl::string_view detail) {
      return detail == kv::ToString(region);
    };
    FaultRegistry::Global().Arm("handoff.omit_region_rows", here);
    FaultRegistry::Global().Arm("handoff.claim_unsent_rows", here);
    const HandoffId handoff =
        TestHandoff(static_cast<uint64_t>(region.layer) * 10 +
                    static_cast<uint64_t>(region.component));
    const Expectation expectation = TestExpectation(
        pair.to.get(), handoff, 259, 2, pair.clock->Now() + absl::Minutes(5));
    ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                         pair.to->receiver->Reserve(expectation));
    Send(&pair, ticket, 259);
    const auto failed =
        pair.to->log->Await(handoff, ReceiverEventKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(failed->status,
                baton::testing::StatusIs(
                    absl::StatusCode::kDataLoss,
                    ::testing::HasSubstr(kv::ToString(region) + ": 0 of")));
    FaultRegistry::Global().DisarmAll();
    pair.to->receiver->Abort(handoff, "test over");
  }
}

TEST_F(MutationTest, StaleAttemptIsReceivedAndDropped) {
  HandoffPair pair;
  const HandoffId handoff = TestHandoff(1);
  const Expectation expectation = TestExpectation(
      pair.to.get(), handoff, 300, 0, pair.clock->Now() + absl::Minutes(5));
  ASSERT_OK(pair.to->receiver->Reserve(expectation));
  ASSERT_OK_AND_ASSIGN(const Ticket second,
                       pair.to->receiver->Reticket(handoff, 2));
  FaultRegistry::Global().Arm("handoff.stale_attempt",
                              [](absl::string_view) { return true; });
  Send(&pair, second, 300);
  FaultRegistry::Global().DisarmAll();
  const auto told = pair.from->log->Await(handoff, SenderEventKind::kFailed);
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(told->status,
              baton::testing::StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(request::InfoOf(told->status).reason, ErrorReason::kStale);
  EXPECT_THAT(pair.to->receiver->stats().bytes, ::testing::IsEmpty());
  ExpectGoodAttempt(&pair, expectation, 3);
}

TEST_F(MutationTest, StaleIncarnationIsRefusedAtTheDoor) {
  HandoffPair pair;
  const HandoffId handoff = TestHandoff(1);
  const Expectation expectation = TestExpectation(
      pair.to.get(), handoff, 300, 0, pair.clock->Now() + absl::Minutes(5));
  ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                       pair.to->receiver->Reserve(expectation));
  FaultRegistry::Global().Arm("handoff.stale_incarnation",
                              [](absl::string_view) { return true; });
  Send(&pair, ticket, 300);
  const auto told = pair.from->log->Await(handoff, SenderEventKind::kFailed);
  FaultRegistry::Global().DisarmAll();
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(told->status,
              baton::testing::StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(request::InfoOf(told->status).reason, ErrorReason::kStale);
  ExpectGoodAttempt(&pair, expectation, 2);
}

}  // namespace
}  // namespace baton::handoff
