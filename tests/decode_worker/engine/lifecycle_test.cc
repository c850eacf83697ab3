// Every way a request can end, at every state it can be in, and what returns
// when. The receiver's events are made by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/testing/status_matchers.h"
#include "tests/decode_worker/engine/decode_rig.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;
using Ask = DecodeRig::Ask;

request::SamplingParams Params(int32_t max_tokens, int32_t n = 1) {
  request::SamplingParams params;
  params.temperature = 0.0F;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.n = n;
  return params;
}

Ask SmallAsk(int32_t max_tokens = 20, int32_t n = 1) {
  return {.prompt = PromptOf(10, 1), .sampling = Params(max_tokens, n)};
}

absl::Status CancelStatus() {
  return request::MakeError(absl::StatusCode::kCancelled, "client went away",
                            {.reason = ErrorReason::kCancelled});
}

enum class State {
  kReserved,
  kAttemptFailed,
  kVerified,
  kRunning,
  kPartlyDone
};

// A call in the given state; the next Iterate would go on from there.
std::unique_ptr<DecodeRig::Call> Reach(
    DecodeRig* rig, State state,
    absl::Duration deadline = absl::InfiniteDuration()) {
  Ask ask = SmallAsk(20, 2);
  ask.deadline = deadline;
  auto call = rig->Start(ask);
  switch (state) {
    case State::kReserved:
      rig->engine().Iterate();
      break;
    case State::kAttemptFailed:
      rig->receiver.Fail(call->handoff, absl::UnavailableError("gone"));
      rig->engine().Iterate();
      break;
    case State::kVerified:
      rig->Prefill(*call);
      break;
    case State::kRunning:
      rig->Prefill(*call);
      rig->engine().Iterate();
      break;
    case State::kPartlyDone:
      rig->Prefill(*call);
      for (int i = 0; i < 5; ++i) rig->engine().Iterate();
      break;
  }
  return call;
}

constexpr State kStates[] = {State::kReserved, State::kAttemptFailed,
                             State::kVerified, State::kRunning,
                             State::kPartlyDone};

TEST(LifecycleTest, CancelReturnsEverythingOnceTheMemoryIsQuiet) {
  for (const State state : kStates) {
    DecodeRig rig;
    rig.receiver.quiet_at_once = false;
    const auto call = Reach(&rig, state);
    const bool committed = state >= State::kRunning;
    rig.engine().Cancel(call->output.get(), CancelStatus());
    rig.engine().Iterate();
    rig.Read(call.get());
    EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kCancelled));
    EXPECT_EQ(rig.receiver.aborts, committed ? 0 : 1);
    EXPECT_EQ(rig.receiver.commits, committed ? 1 : 0);
    // A scatter may still write: nothing has returned.
    EXPECT_LT(rig.pool().counts().free, rig.pool().counts().total);
    EXPECT_EQ(rig.engine().stats().quiescing, 2);
    const int64_t processed = rig.engine().stats().processed_tokens;
    rig.receiver.Quiet(call->handoff);
    rig.engine().Iterate();
    rig.ExpectEmpty();
    EXPECT_EQ(rig.engine().stats().processed_tokens, processed);
    EXPECT_FALSE(call->got.samples[0].finished.has_value());
  }
}

TEST(LifecycleTest, CountsTheStepsBetweenACancelAndTheReturnOfTheMemory) {
  DecodeRig rig;
  rig.receiver.quiet_at_once = false;
  const auto running = Reach(&rig, State::kRunning);
  const auto call = rig.Start(SmallAsk());
  const int64_t at_arrival = rig.engine().stats().steps;
  rig.engine().Iterate();
  // It arrived before a step ended, and the receiver is quiet one step later.
  rig.engine().Cancel(call->output.get(), CancelStatus(), at_arrival);
  rig.engine().Iterate();
  EXPECT_THAT(rig.metric_set.Expose(),
              HasSubstr("baton_cancel_release_steps_count 0"));
  rig.receiver.Quiet(call->handoff);
  rig.engine().Iterate();
  EXPECT_THAT(rig.metric_set.Expose(),
              HasSubstr("baton_cancel_release_steps_count 1"));
  EXPECT_THAT(rig.metric_set.Expose(),
              HasSubstr("baton_cancel_release_steps_sum 2"));
}

TEST(LifecycleTest, TheIdOfARequestThatQuiescesIsStillInUse) {
  DecodeRig rig;
  rig.receiver.quiet_at_once = false;
  const auto call = Reach(&rig, State::kReserved);
  rig.engine().Cancel(call->output.get(), CancelStatus());
  Ask again = SmallAsk();
  again.handoff = call->handoff;
  const auto second = rig.Start(again);
  rig.Read(second.get());
  EXPECT_THAT(*second->got.end, StatusIs(absl::StatusCode::kAlreadyExists));
  // Its cancel does not touch the first one's memory.
  rig.engine().Cancel(second->output.get(), CancelStatus());
  EXPECT_EQ(rig.engine().stats().blocks.free, rig.pool().counts().free);
  rig.receiver.Quiet(call->handoff);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ADeadlineEndsARequestInEveryState) {
  for (const State state : kStates) {
    DecodeRig rig;
    const auto call = Reach(&rig, state, absl::Seconds(9));
    rig.clock.Advance(absl::Seconds(9));
    rig.engine().Iterate();
    rig.Read(call.get());
    EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_FALSE(call->got.samples[0].finished.has_value());
    rig.ExpectEmpty();
  }
}

TEST(LifecycleTest, ACommitThatIsRefusedStartsNothing) {
  DecodeRig rig;
  const auto call = rig.Start(SmallAsk());
  rig.Prefill(*call);
  // A lease that ends between verification and the step loop's turn.
  rig.receiver.live.at(call->handoff).state = FakeReceiver::State::kAborted;
  rig.receiver.events.push_back(
      {.kind = handoff::ReceiverEventKind::kExpired,
       .handoff = call->handoff,
       .attempt = 1,
       .status = request::MakeError(absl::StatusCode::kDeadlineExceeded,
                                    "the lease ended",
                                    {.reason = ErrorReason::kWorkerLost})});
  rig.receiver.Quiet(call->handoff);
  rig.RunSteps();
  rig.Read(call.get());
  EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(call->got.committed.has_value());
  EXPECT_EQ(rig.engine().stats().sampled_tokens, 0);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, AFailedAttemptIsReportedAndTheNextOneRuns) {
  DecodeRig rig;
  const auto direct = rig.Complete(SmallAsk(8));
  const auto call = rig.Start(SmallAsk(8));
  rig.receiver.Fail(
      call->handoff,
      request::MakeError(absl::StatusCode::kDataLoss, "checksum",
                         {.reason = ErrorReason::kHandoffRejected}));
  rig.engine().Iterate();
  rig.engine().Reticket(call->output.get(), 2);
  rig.Prefill(*call);
  rig.RunSteps();
  rig.Read(call.get());
  EXPECT_THAT(call->got.order,
              ElementsAre("reserved", "handoff_failed", "reticketed",
                          "committed", "finished"));
  EXPECT_EQ(call->got.failures[0].attempt, 1);
  EXPECT_EQ(request::InfoOf(call->got.failures[0].status).reason,
            ErrorReason::kHandoffRejected);
  EXPECT_EQ(call->got.reticketed->ticket.attempt, 2);
  EXPECT_FALSE(call->got.reticketed->already_committed);
  EXPECT_EQ(call->got.committed->attempt, 2);
  EXPECT_EQ(call->got.samples[0].ids, direct->got.samples[0].ids);
  EXPECT_THAT(rig.metric_set.Expose(),
              HasSubstr("baton_handoff_failures_total{reason=\"handoff_"
                        "rejected\"} 1"));
  rig.ExpectEmpty();
}

TEST(LifecycleTest, EventsOfAnOlderAttemptChangeNothing) {
  DecodeRig rig;
  const auto call = rig.Start(SmallAsk());
  rig.Prefill(*call);  // kVerified of attempt 1 is on its way
  rig.engine().Reticket(call->output.get(), 2);
  rig.receiver.events.push_back({.kind = handoff::ReceiverEventKind::kFailed,
                                 .handoff = call->handoff,
                                 .attempt = 1,
                                 .status = absl::AbortedError("stale")});
  rig.RunSteps();
  rig.Read(call.get());
  EXPECT_THAT(call->got.order, ElementsAre("reserved", "reticketed"));
  EXPECT_EQ(rig.receiver.commits, 0);
  rig.engine().Cancel(call->output.get(), CancelStatus());
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ReticketAfterTheCommitSaysSo) {
  DecodeRig rig;
  const auto call = Reach(&rig, State::kRunning);
  rig.engine().Reticket(call->output.get(), 2);
  rig.RunSteps();
  rig.Read(call.get());
  EXPECT_TRUE(call->got.reticketed->already_committed);
  EXPECT_OK(*call->got.end);
  EXPECT_EQ(call->got.samples[0].ids.size(), 20u);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ABadReticketEndsTheRequest) {
  DecodeRig rig;
  const auto call = rig.Start(SmallAsk());
  rig.engine().Reticket(call->output.get(), 1);
  rig.Read(call.get());
  EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(request::InfoOf(*call->got.end).reason, ErrorReason::kStale);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, AnEndedLeaseEndsTheCallAsAbortedOrDeadline) {
  for (const bool deadline : {false, true}) {
    DecodeRig rig;
    const auto call = rig.Start(SmallAsk());
    // As the receiver says it: one code, told apart by the reason.
    rig.receiver.Expire(
        call->handoff,
        request::MakeError(absl::StatusCode::kDeadlineExceeded, "ended",
                           {.reason = deadline ? ErrorReason::kDeadline
                                               : ErrorReason::kWorkerLost}));
    rig.receiver.Quiet(call->handoff);
    rig.engine().Iterate();
    rig.Read(call.get());
    EXPECT_THAT(*call->got.end,
                StatusIs(deadline ? absl::StatusCode::kDeadlineExceeded
                                  : absl::StatusCode::kAborted));
    EXPECT_EQ(request::InfoOf(*call->got.end).reason,
              deadline ? ErrorReason::kDeadline : ErrorReason::kStale);
    rig.ExpectEmpty();
  }
}

TEST(LifecycleTest, ADeadlineEndsARunningRequestWithoutFinish) {
  DecodeRig rig;
  Ask ask = SmallAsk(200);
  ask.deadline = absl::Seconds(5);
  const auto call = rig.Start(ask);
  rig.Prefill(*call);
  rig.engine().Iterate();
  rig.Read(call.get());
  rig.clock.Advance(absl::Seconds(5));
  rig.engine().Iterate();
  rig.Read(call.get());
  EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(call->got.samples[0].finished.has_value());
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ADeadlineInThePastIsRefused) {
  DecodeRig rig;
  Ask ask = SmallAsk();
  ask.deadline = absl::ZeroDuration();
  const auto call = rig.Start(ask);
  rig.Read(call.get());
  EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kDeadlineExceeded));
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ARefusingReceiverLeavesNothingHeld) {
  DecodeRig rig;
  rig.receiver.refuse_reserve = absl::AlreadyExistsError("tombstone");
  const auto call = rig.Start(SmallAsk());
  rig.Read(call.get());
  EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kAlreadyExists));
  rig.ExpectEmpty();
}

TEST(LifecycleTest, ASlowReaderIsCutAndOthersRunOn) {
  DecodeRig rig;
  const auto slow = rig.Start(SmallAsk(400));
  const auto good = rig.Start(SmallAsk(400));
  rig.Prefill(*slow);
  rig.Prefill(*good);
  rig.engine().Iterate();
  rig.Read(good.get());
  ASSERT_TRUE(slow->output->Take().has_value());  // a write that never ends
  rig.clock.Advance(absl::Seconds(29));
  rig.engine().Iterate();
  EXPECT_EQ(rig.engine().stats().running, 2);
  rig.clock.Advance(absl::Seconds(2));
  rig.engine().Iterate();
  rig.Read(good.get());
  EXPECT_EQ(rig.engine().stats().running, 1);
  EXPECT_FALSE(good->got.end.has_value());
  slow->output->Written();
  rig.Read(slow.get());
  EXPECT_THAT(*slow->got.end, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(request::InfoOf(*slow->got.end).reason, ErrorReason::kSlowReader);
  rig.RunSteps();
  rig.Read(good.get());
  EXPECT_OK(*good->got.end);
  EXPECT_EQ(good->got.samples[0].ids.size(), 400u);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, AFinishedRequestHoldsNoMemoryWhileItsReaderIsAway) {
  DecodeRig rig;
  const auto call = rig.Start(SmallAsk(5));
  rig.Prefill(*call);
  rig.RunSteps();
  rig.ExpectEmpty();  // nobody has read yet
  EXPECT_FALSE(rig.engine().idle());
  rig.Read(call.get());
  EXPECT_OK(*call->got.end);
  EXPECT_EQ(call->got.samples[0].ids.size(), 5u);
  call->output->Close();
  rig.clock.Advance(absl::Seconds(1));
  rig.engine().Iterate();
  EXPECT_TRUE(rig.engine().idle());
}

TEST(LifecycleTest, DrainingRefusesNewWorkAndLetsTheRestFinish) {
  DecodeRig rig;
  const auto running = Reach(&rig, State::kRunning);
  const auto waiting = rig.Start(SmallAsk(3));
  rig.engine().BeginDrain();
  const auto refused = rig.Start(SmallAsk());
  rig.Read(refused.get());
  EXPECT_THAT(*refused->got.end, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(request::InfoOf(*refused->got.end).reason, ErrorReason::kDraining);
  rig.Prefill(*waiting);
  rig.RunSteps();
  rig.Read(running.get());
  rig.Read(waiting.get());
  EXPECT_OK(*running->got.end);
  EXPECT_OK(*waiting->got.end);
  rig.ExpectEmpty();
}

TEST(LifecycleTest, EndAllEndsEveryCallWithTheStatus) {
  DecodeRig rig;
  std::vector<std::unique_ptr<DecodeRig::Call>> calls;
  for (const State state : kStates) calls.push_back(Reach(&rig, state));
  rig.engine().EndAll(absl::UnavailableError("stops"));
  for (const auto& call : calls) {
    rig.Read(call.get());
    EXPECT_THAT(*call->got.end, StatusIs(absl::StatusCode::kUnavailable));
  }
  rig.ExpectEmpty();
}

TEST(LifecycleTest, KeepsTheLedgerThroughACancelStorm) {
  DecodeRig rig({.blocks = 24, .slots = 12, .seats = 12});
  SeededRandom random(17);
  std::vector<std::unique_ptr<DecodeRig::Call>> open;
  int32_t accepted = 0;
  int32_t complete = 0;
  int32_t cancelled = 0;
  const auto settle = [&] {  // forgets the calls that have ended
    for (auto it = open.begin(); it != open.end();) {
      rig.Read(it->get());
      const Collected& got = (*it)->got;
      if (!got.end.has_value()) {
        ++it;
        continue;
      }
      accepted += got.ticket.has_value() ? 1 : 0;
      complete += got.end->ok() ? 1 : 0;
      cancelled += absl::IsCancelled(*got.end) ? 1 : 0;
      it = open.erase(it);
    }
  };
  for (int i = 0; i < 2000; ++i) {
    const uint64_t what = random.Uint64() % 8;
    if (what < 2) {
      open.push_back(rig.Start(
          {.prompt =
               PromptOf(1 + static_cast<int64_t>(random.Uint64() % 20), i),
           .sampling = Params(1 + static_cast<int32_t>(random.Uint64() % 12),
                              1 + static_cast<int32_t>(random.Uint64() % 3))}));
    } else if (what >= 4 || open.empty()) {
      rig.engine().Iterate();
    } else {
      DecodeRig::Call* const call = open[random.Uint64() % open.size()].get();
      if (what == 2) {
        rig.engine().Cancel(call->output.get(), CancelStatus());
      } else if (rig.receiver.live.at(call->handoff).state ==
                 FakeReceiver::State::kReserved) {
        rig.Prefill(*call);
      }
    }
    settle();
    ASSERT_OK(rig.pool().Audit()) << "operation " << i;
    ASSERT_EQ(rig.pool().orphaned(), 0);
  }
  for (const auto& call : open) {
    rig.engine().Cancel(call->output.get(), CancelStatus());
  }
  settle();
  EXPECT_TRUE(open.empty());
  // The storm reached every way of ending.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(complete, 20);
  EXPECT_GT(cancelled, 20);
  rig.ExpectEmpty();
  EXPECT_EQ(BugCount(), 0);
}

}  // namespace
}  // namespace baton::decode_worker
