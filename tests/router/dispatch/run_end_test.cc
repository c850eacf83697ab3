// How a request ends: cancel, deadline, silence, gaps, slow readers.

#include "tests/router/dispatch/run_fixture.h"

namespace baton::router::dispatch {
namespace {

class RunStateTest : public RunTest,
                     public ::testing::WithParamInterface<RunState> {};

TEST_P(RunStateTest, CancelFreesEverything) {
  AddWorkers(2, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(GetParam(), *run);
  run->ClientGone();
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kCancelled);
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"cancelled\"} 1"));
  ExpectClean();
  // Events of the dead legs change nothing.
  for (const auto& call : legs_.prefills) {
    call->send(LegEnded{absl::CancelledError("")});
  }
  for (const auto& call : legs_.decodes) call->End(absl::CancelledError(""));
  ExpectClean();
  EXPECT_EQ(ended_, 1);
}

TEST_P(RunStateTest, DeadlineFreesEverything) {
  AddWorkers(2, 2);
  FakeSink sink;
  // Only the request's own deadline is short enough to fire.
  context_.options.answer_timeout = absl::Hours(1);
  context_.options.progress_timeout = absl::Hours(1);
  context_.options.output_timeout = absl::Hours(1);
  const auto run = Begin(&sink);
  DriveTo(GetParam(), *run);
  Advance(absl::Seconds(60) - absl::Nanoseconds(1));
  // kAdmitted moves on by itself.
  EXPECT_FALSE(sink.finished);
  Advance(absl::Nanoseconds(1));
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kDeadline);
  ExpectClean();
}

TEST_P(RunStateTest, SilentWorkersAreGivenUp) {
  AddWorkers(2, 2);
  FakeSink sink;
  context_.options.output_timeout = absl::Seconds(12);
  const auto run = Begin(&sink);
  DriveTo(GetParam(), *run);
  for (int second = 0; second < 59 && !sink.finished; ++second) {
    Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(sink.finished) << RunStateName(run->state());
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kWorkerLost)
      << sink.final.ToString();
  ExpectClean();
}

INSTANTIATE_TEST_SUITE_P(
    AllStates, RunStateTest,
    ::testing::Values(RunState::kAdmitting, RunState::kAdmitted,
                      RunState::kReserving, RunState::kTransferring,
                      RunState::kReticketing, RunState::kReadmitting,
                      RunState::kCommitted, RunState::kStreaming),
    [](const auto& state) { return std::string(RunStateName(state.param)); });

TEST_F(RunTest, CancelWhileQueuedFreesEverything) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(LegEnded{absl::ResourceExhaustedError("backlog")});
  ASSERT_EQ(run->state(), RunState::kQueued);
  run->ClientGone();
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kCancelled));
  ExpectClean();
}

TEST_F(RunTest, SequenceGapIsAnErrorNeverText) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kStreaming, *run);
  Token(2);
  EXPECT_THAT(sink.final,
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("event 2 came, expected event 1")));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kBug);
  EXPECT_EQ(BugCount(), bugs_before_ + 1);
  EXPECT_EQ(legs_.held(), 0);
}

TEST_F(RunTest, MissingOutputIsNeverSuccess) {
  for (const bool short_total : {false, true}) {
    SCOPED_TRACE(short_total);
    AddWorkers(1, 1);
    FakeSink sink;
    const auto run = Begin(&sink);
    DriveTo(RunState::kStreaming, *run);
    if (short_total) {
      FinishSample(2);  // one event came
    } else {
      legs_.decode().End(absl::OkStatus());  // no Finished came
    }
    EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kInternal));
    EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kBug);
  }
}

TEST_F(RunTest, EndsOnlyAfterEverySample) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink, /*n=*/2);
  DriveTo(RunState::kCommitted, *run);
  Token(0, 1);
  FinishSample(1, 1);
  EXPECT_FALSE(sink.finished);
  Token(0, 0);
  Token(1, 0);
  FinishSample(2, 0);
  EXPECT_TRUE(sink.finished);
  EXPECT_OK(sink.final);
  ExpectClean();
}

TEST_F(RunTest, SlowReaderHoldsDecodeBackAndIsCut) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kStreaming, *run);
  sink.reading = false;
  Token(1);
  EXPECT_EQ(sink.unread, 1);
  EXPECT_EQ(legs_.decode().reads, 0);  // nothing more is asked for
  Advance(context_.options.slow_reader_timeout - absl::Milliseconds(1));
  EXPECT_FALSE(sink.finished);
  Advance(absl::Milliseconds(1));
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kCancelled,
                                   HasSubstr("did not read")));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kSlowReader);
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"slow_reader\"} 1"));
  ExpectClean();
}

TEST_F(RunTest, AReaderThatComesBackInTimeLosesNothing) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kStreaming, *run);
  sink.reading = false;
  Token(1);
  Advance(context_.options.slow_reader_timeout - absl::Milliseconds(1));
  sink.reading = true;
  sink.TakeOne();
  Token(2);
  FinishSample(3);
  EXPECT_OK(sink.final);
  ExpectClean();
}

TEST_F(RunTest, LastEventUnreadIsNotASuccess) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kStreaming, *run);
  sink.reading = false;
  FinishSample(1);
  EXPECT_FALSE(sink.finished);
  Advance(context_.options.slow_reader_timeout);
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kSlowReader);
  ExpectClean();
}

TEST_F(RunTest, EventsWithoutContentAreNotSentAndLeaveNoGap) {
  AddWorkers(1, 1);
  FakeSink sink;
  RequestSpec spec;
  spec.id = RequestId::Mint(&random_);
  spec.prompt_ids = std::make_shared<const std::vector<int32_t>>(3, 1);
  spec.sampling.max_tokens = 8;
  spec.accepted = clock_.Now();
  spec.deadline = clock_.Now() + absl::Seconds(60);
  ASSERT_TRUE(queue_.TryArrive());
  const auto run = RequestRun::Create(&context_, std::move(spec), &sink);
  sink.run = run.get();
  run->Start();
  DriveTo(RunState::kCommitted, *run);
  legs_.decode().Send(DecodeTokens{.sequence = 0, .token_ids = {1}});
  legs_.decode().Send(
      DecodeTokens{.sequence = 1, .token_ids = {2}, .text = "ab"});
  FinishSample(2);
  ASSERT_EQ(sink.events.size(), 3u);
  const auto& delta = std::get<ClientDelta>(sink.events[1]);
  EXPECT_EQ(delta.sequence, 0);
  EXPECT_EQ(delta.text, "ab");
  EXPECT_TRUE(delta.token_ids.empty());
  EXPECT_OK(sink.final);
}

TEST_F(RunTest, WorkersThatFailAreAvoidedByOthersUntilTheyReport) {
  AddWorkers(2, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  const std::string dead = legs_.prefill().worker.name;
  legs_.prefill().send(LegEnded{absl::UnavailableError("refused")});
  for (int i = 0; i < 3; ++i) {
    FakeSink other;
    const auto other_run = Begin(&other);
    EXPECT_NE(legs_.prefill().worker.name, dead);
    other_run->ClientGone();
  }
  run->ClientGone();
  ExpectClean();
}

}  // namespace
}  // namespace baton::router::dispatch
