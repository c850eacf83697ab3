// Races of hazards.md, replayed with sync points: each many times, each with
// the order that once went wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>

#include "common/base/fault_point.h"
#include "common/base/thread.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "common/testing/sync_point.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {
namespace {

using baton::testing::FakeClock;
using baton::testing::StatusIs;
using baton::testing::SyncPoint;
using request::ErrorReason;
using ReceiverKind = ReceiverEventKind;
using SenderKind = SenderEventKind;

constexpr int64_t kTokens = 300;

// Acts `times` times, then lets pass.
void ArmTimes(const std::string& fault, int times) {
  FaultRegistry::Global().Arm(
      fault, [left = std::make_shared<std::atomic<int>>(times)](
                 absl::string_view) { return left->fetch_sub(1) > 0; });
}

class RaceTest : public ::testing::Test {
 protected:
  ~RaceTest() override { FaultRegistry::Global().DisarmAll(); }

  // Runs `body` on a fresh pair, as often as the transport affords.
  template <typename Body>
  void Repeat(Clock* clock, int64_t max_segment_bytes, Body body) {
    int repetitions = 1;
    for (int i = 0; i < repetitions; ++i) {
      SCOPED_TRACE(::testing::Message() << "repetition " << i);
      pair_ = std::make_unique<HandoffPair>(clock, max_segment_bytes);
      repetitions = pair_->transport->repetitions();
      body();
      FaultRegistry::Global().DisarmAll();
      pair_.reset();
      if (HasFailure()) return;
    }
  }

  Ticket Reserve(uint64_t id, int32_t index,
                 absl::Duration within = absl::Minutes(5)) {
    const Expectation expectation =
        TestExpectation(pair_->to.get(), TestHandoff(id), kTokens, index,
                        pair_->clock->Now() + within);
    sequences_[id] = expectation.sequence;
    auto ticket = pair_->to->receiver->Reserve(expectation);
    EXPECT_OK(ticket);
    return ticket.value_or(Ticket{});
  }

  // Starts an attempt on `side` with rows of `seed`.
  SendRequest Start(SenderSide* side, const Ticket& ticket, int32_t index,
                    uint64_t seed) {
    const SendRequest request = TestSendRequest(
        side, ticket, kTokens, index, pair_->clock->Now() + absl::Minutes(5));
    side->store.Fill(request.sequence, kTokens, seed);
    EXPECT_OK(side->sender->Start(request));
    return request;
  }
  void Seal(SenderSide* side, const Ticket& ticket) {
    side->sender->Seal(ticket.handoff, TestSeal(ticket.handoff, 1));
  }

  bool RowsEqual(uint64_t id, SenderSide* side, const SendRequest& request) {
    return pair_->to->store.Rows(sequences_[id], kTokens) ==
           side->store.Rows(request.sequence, kTokens);
  }
  std::optional<ReceiverEvent> Receiver(const Ticket& t, ReceiverKind kind) {
    return pair_->to->log->Await(t.handoff, kind);
  }
  std::optional<SenderEvent> Sender(SenderSide* side, const Ticket& t,
                                    SenderKind kind) {
    return side->log->Await(t.handoff, kind);
  }
  void ExpectCommit(const Ticket& ticket) {
    ASSERT_TRUE(Receiver(ticket, ReceiverKind::kVerified).has_value());
    EXPECT_EQ(pair_->to->receiver->Commit(ticket.handoff, ticket.attempt),
              CommitResult::kCommitted);
    EXPECT_TRUE(Receiver(ticket, ReceiverKind::kQuiet).has_value());
  }
  void ExpectSenderFailed(SenderSide* side, const Ticket& ticket,
                          absl::StatusCode code, ErrorReason reason) {
    const auto failed = Sender(side, ticket, SenderKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->status.code(), code) << failed->status;
    EXPECT_EQ(request::InfoOf(failed->status).reason, reason);
    EXPECT_TRUE(Sender(side, ticket, SenderKind::kQuiet).has_value());
  }

  // Lets other threads run between two looks at something that has no event.
  void Pause() {
    MutexLock lock(&mu_);
    pause_.WaitFor(&mu_, absl::Milliseconds(1));
  }

  std::unique_ptr<HandoffPair> pair_;
  std::map<uint64_t, kv::SequenceView> sequences_;
  Mutex mu_;
  CondVar pause_;
};

TEST_F(RaceTest, CancelThatOvertakesCommitWins) {
  Repeat(Clock::Real(), 4096, [this] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ASSERT_TRUE(Receiver(ticket, ReceiverKind::kVerified).has_value());
    CommitResult result = CommitResult::kCommitted;
    {
      SyncPoint held("handoff.before_commit");
      Thread committer("committer", [&] {
        result = pair_->to->receiver->Commit(ticket.handoff, 1);
      });
      ASSERT_TRUE(held.WaitUntilReached());
      pair_->to->receiver->Abort(ticket.handoff, "client cancelled");
      held.Release();
    }
    EXPECT_EQ(result, CommitResult::kNotVerified);
    EXPECT_TRUE(Receiver(ticket, ReceiverKind::kQuiet).has_value());
    ExpectSenderFailed(from, ticket, absl::StatusCode::kCancelled,
                       ErrorReason::kCancelled);
  });
}

TEST_F(RaceTest, CancelAfterCommitChangesNothing) {
  Repeat(Clock::Real(), 4096, [this] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ASSERT_TRUE(Receiver(ticket, ReceiverKind::kVerified).has_value());
    {
      SyncPoint held("handoff.before_verdict");
      Thread committer("committer", [&] {
        EXPECT_EQ(pair_->to->receiver->Commit(ticket.handoff, 1),
                  CommitResult::kCommitted);
      });
      ASSERT_TRUE(held.WaitUntilReached());
      pair_->to->receiver->Abort(ticket.handoff, "too late");
      EXPECT_THAT(pair_->to->receiver->Reticket(ticket.handoff, 2),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
      held.Release();
    }
    EXPECT_TRUE(Sender(from, ticket, SenderKind::kCommitted).has_value());
    EXPECT_TRUE(Receiver(ticket, ReceiverKind::kQuiet).has_value());
    // Exactly one kQuiet.
    EXPECT_FALSE(
        pair_->to->log->Find(ticket.handoff, ReceiverKind::kQuiet).has_value());
  });
}

TEST_F(RaceTest, AbortWaitsForTheLastScatter) {
  Repeat(Clock::Real(), 4096, [this] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    SyncPoint held("handoff.before_scatter");
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ASSERT_TRUE(held.WaitUntilReached());
    pair_->to->receiver->Abort(ticket.handoff, "client cancelled");
    EXPECT_FALSE(
        pair_->to->log->Find(ticket.handoff, ReceiverKind::kQuiet).has_value());
    EXPECT_THAT(pair_->to->receiver->stats().states,
                ::testing::Contains(::testing::Pair("quiescing", 1)));
    held.Release();
    EXPECT_TRUE(Receiver(ticket, ReceiverKind::kQuiet).has_value());
    ExpectSenderFailed(from, ticket, absl::StatusCode::kCancelled,
                       ErrorReason::kCancelled);
  });
}

TEST_F(RaceTest, RowsOfAWakingFirstPrefillNeverMixWithTheSecond) {
  Repeat(Clock::Real(), 4096, [this] {
    SenderSide* const first = pair_->from.get();
    SenderSide second(pair_->transport.get(), pair_->clock, "prefill-1", 31,
                      4096);
    const Ticket ticket = Reserve(1, 0);
    SyncPoint held("handoff.before_scatter");
    Start(first, ticket, 0, /*seed=*/1);
    Seal(first, ticket);
    ASSERT_TRUE(held.WaitUntilReached());
    // The first prefill stands in the middle of a scatter.
    ASSERT_OK_AND_ASSIGN(const Ticket again,
                         pair_->to->receiver->Reticket(ticket.handoff, 2));
    const SendRequest request = Start(&second, again, 1, /*seed=*/2);
    Seal(&second, again);
    // The second may not have its first segment Posted before that is over.
    ExpectSenderFailed(first, ticket, absl::StatusCode::kAborted,
                       ErrorReason::kStale);
    EXPECT_EQ(second.sender->stats().segments, 0);
    held.Release();
    ExpectCommit(again);
    EXPECT_TRUE(Sender(&second, again, SenderKind::kCommitted).has_value());
    EXPECT_TRUE(RowsEqual(1, &second, request));
    EXPECT_EQ(pair_->to->receiver->Commit(ticket.handoff, 1),
              CommitResult::kNotVerified);
  });
}

TEST_F(RaceTest, SegmentThatArrivesAfterTheRetickedIsDroppedAtScatter) {
  Repeat(Clock::Real(), 4096, [this] {
    SenderSide* const first = pair_->from.get();
    SenderSide second(pair_->transport.get(), pair_->clock, "prefill-1", 31,
                      4096);
    const Ticket ticket = Reserve(1, 0);
    SyncPoint held("handoff.segment_received");
    Start(first, ticket, 0, /*seed=*/1);
    Seal(first, ticket);
    ASSERT_TRUE(held.WaitUntilReached());
    ASSERT_OK_AND_ASSIGN(const Ticket again,
                         pair_->to->receiver->Reticket(ticket.handoff, 2));
    held.Release();
    const SendRequest request = Start(&second, again, 1, /*seed=*/2);
    Seal(&second, again);
    ExpectCommit(again);
    EXPECT_TRUE(RowsEqual(1, &second, request));
    EXPECT_GE(pair_->to->receiver->stats().segments_dropped, 1);
  });
}

TEST_F(RaceTest, LostVerdictIsAskedFor) {
  FakeClock clock;
  Repeat(&clock, 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    ArmTimes("handoff.drop_verdict", 1);
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ExpectCommit(ticket);
    EXPECT_FALSE(
        from->log->Find(ticket.handoff, SenderKind::kCommitted).has_value());
    clock.Advance(absl::Seconds(11));  // verdict_timeout
    EXPECT_TRUE(Sender(from, ticket, SenderKind::kCommitted).has_value());
    EXPECT_TRUE(Sender(from, ticket, SenderKind::kQuiet).has_value());
  });
}

TEST_F(RaceTest, VerdictLostWithTheLinkIsAskedForOnTheNext) {
  FakeClock clock;
  Repeat(&clock, 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    ArmTimes("handoff.drop_verdict", 1);
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ExpectCommit(ticket);
    pair_->to->Reconnect(pair_->transport.get());
    // The sender redials on its clock.
    std::optional<SenderEvent> committed;
    for (int i = 0; i < 200 && !committed.has_value(); ++i) {
      clock.Advance(absl::Milliseconds(50));
      Pause();
      committed = from->log->Find(ticket.handoff, SenderKind::kCommitted);
    }
    EXPECT_TRUE(committed.has_value());
  });
}

TEST_F(RaceTest, SealedHandoffIsCommittedAlthoughItsLinkIsLost) {
  Repeat(Clock::Real(), 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    const SendRequest request = Start(from, ticket, 0, 1);
    Seal(from, ticket);
    ASSERT_TRUE(Receiver(ticket, ReceiverKind::kVerified).has_value());
    pair_->to->Reconnect(pair_->transport.get());
    EXPECT_EQ(pair_->to->receiver->Commit(ticket.handoff, 1),
              CommitResult::kCommitted);
    EXPECT_TRUE(Sender(from, ticket, SenderKind::kCommitted).has_value());
    EXPECT_TRUE(RowsEqual(1, from, request));
  });
}

TEST_F(RaceTest, LeaseEndsWithoutProgressAndNotBefore) {
  FakeClock clock;
  Repeat(&clock, 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    EXPECT_EQ(ticket.lease, absl::Seconds(10));
    Start(from, ticket, 0, 1);
    for (int i = 0; i < 5000 && from->sender->stats().links_up == 0; ++i) {
      Pause();
    }
    clock.Advance(absl::Seconds(9));
    from->sender->RowsComplete(ticket.handoff, 3);  // no row, but progress
    const auto receiving = ::testing::Contains(::testing::Pair("receiving", 1));
    for (int i = 0; i < 2000; ++i) {
      if (::testing::Value(pair_->to->receiver->stats().states, receiving)) {
        break;
      }
      Pause();
    }
    ASSERT_THAT(pair_->to->receiver->stats().states, receiving);
    clock.Advance(absl::Seconds(9));
    EXPECT_FALSE(pair_->to->log->Find(ticket.handoff, ReceiverKind::kExpired)
                     .has_value());
    clock.Advance(absl::Seconds(2));
    const auto expired =
        pair_->to->log->Find(ticket.handoff, ReceiverKind::kExpired);
    ASSERT_TRUE(expired.has_value());
    EXPECT_THAT(expired->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(Receiver(ticket, ReceiverKind::kQuiet).has_value());
    Seal(from, ticket);  // the prefill wakes too late
    EXPECT_TRUE(Sender(from, ticket, SenderKind::kFailed).has_value());
    EXPECT_EQ(pair_->to->receiver->Commit(ticket.handoff, 1),
              CommitResult::kNotVerified);
    EXPECT_THAT(pair_->to->receiver->Reticket(ticket.handoff, 2),
                StatusIs(absl::StatusCode::kNotFound));
  });
}

TEST_F(RaceTest, RestartedReceiverRefusesOldTickets) {
  Repeat(Clock::Real(), 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    const std::string endpoint = pair_->to->host->endpoint();
    pair_->to.reset();
    pair_->to = std::make_unique<ReceiverSide>(pair_->transport.get(),
                                               pair_->clock, 12, endpoint);
    ASSERT_EQ(pair_->to->host->endpoint(), endpoint);
    Start(from, ticket, 0, 1);
    ExpectSenderFailed(from, ticket, absl::StatusCode::kAborted,
                       ErrorReason::kStale);
    // A ticket of the new incarnation is served by the same sender.
    const Ticket fresh = Reserve(2, 0);
    Start(from, fresh, 1, 2);
    Seal(from, fresh);
    ExpectCommit(fresh);
  });
}

TEST_F(RaceTest, RestartedSenderVoidsWhatTheOldOneSent) {
  Repeat(Clock::Real(), 4096, [&] {
    const Ticket ticket = Reserve(1, 0);
    Start(pair_->from.get(), ticket, 0, 1);
    pair_->from->sender->RowsComplete(ticket.handoff, 256);
    SenderSide again(pair_->transport.get(), pair_->clock, "prefill-0", 22,
                     4096);
    const Ticket other = Reserve(2, 1);
    // Once the first is on its way.
    for (int i = 0; i < 5000; ++i) {
      if (!pair_->to->receiver->stats().bytes.empty()) break;
      Pause();
    }
    Start(&again, other, 1, 2);
    Seal(&again, other);
    const auto failed = Receiver(ticket, ReceiverKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kUnavailable));
    ExpectCommit(other);
    // The new incarnation may take the hand-off over with a new attempt.
    ASSERT_OK_AND_ASSIGN(const Ticket second,
                         pair_->to->receiver->Reticket(ticket.handoff, 2));
    const SendRequest request = Start(&again, second, 0, 3);
    Seal(&again, second);
    ExpectCommit(second);
    EXPECT_TRUE(RowsEqual(1, &again, request));
  });
}

TEST_F(RaceTest, LinkLostInTheMiddleFailsTheAttemptAndTheNextWorks) {
  Repeat(Clock::Real(), 1024, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    // At the third segment.
    FaultRegistry::Global().Arm(
        "transfer.drop_link",
        [n = std::make_shared<std::atomic<int>>(0)](absl::string_view) {
          return n->fetch_add(1) == 2;
        });
    Start(from, ticket, 0, 1);
    Seal(from, ticket);
    const auto failed = Receiver(ticket, ReceiverKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kUnavailable));
    ExpectSenderFailed(from, ticket, absl::StatusCode::kUnavailable,
                       ErrorReason::kWorkerLost);
    ASSERT_OK_AND_ASSIGN(const Ticket again,
                         pair_->to->receiver->Reticket(ticket.handoff, 2));
    const SendRequest request = Start(from, again, 0, 2);
    Seal(from, again);
    ExpectCommit(again);
    EXPECT_TRUE(RowsEqual(1, from, request));
  });
}

TEST_F(RaceTest, CancelledHandoffDoesNotDisturbTheOtherOnTheLink) {
  Repeat(Clock::Real(), 1024, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket a = Reserve(1, 0);
    const Ticket b = Reserve(2, 1);
    SendRequest request;
    {
      SyncPoint held("handoff.before_scatter");
      Start(from, a, 0, 1);
      request = Start(from, b, 1, 2);
      Seal(from, a);
      ASSERT_TRUE(held.WaitUntilReached());
      Seal(from, b);
      pair_->to->receiver->Abort(a.handoff, "client cancelled");
      held.Release();
    }
    ExpectCommit(b);
    EXPECT_TRUE(RowsEqual(2, from, request));
    EXPECT_TRUE(Receiver(a, ReceiverKind::kQuiet).has_value());
    ExpectSenderFailed(from, a, absl::StatusCode::kCancelled,
                       ErrorReason::kCancelled);
    EXPECT_TRUE(Sender(from, b, SenderKind::kCommitted).has_value());
    EXPECT_EQ(from->sender->stats().links_up, 1);
  });
}

TEST_F(RaceTest, SenderThatCancelsWhileGatheringIsQuietAfterIt) {
  Repeat(Clock::Real(), 1024, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket a = Reserve(1, 0);
    const Ticket b = Reserve(2, 1);
    SyncPoint held("handoff.before_gather");
    Start(from, a, 0, 1);
    from->sender->RowsComplete(a.handoff, 256);
    ASSERT_TRUE(held.WaitUntilReached());
    from->sender->Cancel(a.handoff, "test");
    EXPECT_FALSE(from->log->Find(a.handoff, SenderKind::kQuiet).has_value());
    held.Release();
    EXPECT_TRUE(Sender(from, a, SenderKind::kQuiet).has_value());
    EXPECT_FALSE(from->log->Find(a.handoff, SenderKind::kFailed).has_value());
    // The receiver learns it and the link serves on.
    const auto failed = Receiver(a, ReceiverKind::kFailed);
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kCancelled));
    Start(from, b, 1, 2);
    Seal(from, b);
    ExpectCommit(b);
  });
}

TEST_F(RaceTest, StalledLinkFailsItsHandoffsAndTheNextLinkWorks) {
  FakeClock clock;
  Repeat(&clock, 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket ticket = Reserve(1, 0);
    {
      SyncPoint held("handoff.before_scatter");
      Start(from, ticket, 0, 1);
      Seal(from, ticket);
      ASSERT_TRUE(held.WaitUntilReached());
      // Past stall_timeout, which counts from the last Posted or Done.
      std::optional<SenderEvent> failed;
      for (int i = 0; i < 1000 && !failed.has_value(); ++i) {
        clock.Advance(absl::Seconds(1));
        Pause();
        failed = from->log->Find(ticket.handoff, SenderKind::kFailed);
      }
      ASSERT_TRUE(failed.has_value());
      EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kUnavailable,
                                           ::testing::HasSubstr("stalled")));
      held.Release();
    }
    const Ticket fresh = Reserve(2, 1);
    const SendRequest request = Start(from, fresh, 1, 2);
    Seal(from, fresh);
    ExpectCommit(fresh);
    EXPECT_TRUE(RowsEqual(2, from, request));
  });
}

TEST_F(RaceTest, DeadlineEndsTheHandoffAndNotTheLink) {
  FakeClock clock;
  Repeat(&clock, 4096, [&] {
    SenderSide* const from = pair_->from.get();
    const Ticket a = Reserve(1, 0);
    const Ticket b = Reserve(2, 1);
    SendRequest request =
        TestSendRequest(from, a, kTokens, 0, clock.Now() + absl::Seconds(3));
    from->store.Fill(request.sequence, kTokens, 1);
    ASSERT_OK(from->sender->Start(request));
    const SendRequest other = Start(from, b, 1, 2);
    clock.Advance(absl::Seconds(4));
    ExpectSenderFailed(from, a, absl::StatusCode::kDeadlineExceeded,
                       ErrorReason::kDeadline);
    Seal(from, b);
    ExpectCommit(b);
    EXPECT_TRUE(RowsEqual(2, from, other));
    EXPECT_EQ(from->sender->stats().links_up, 1);
  });
}

}  // namespace
}  // namespace baton::handoff
