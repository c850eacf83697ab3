// The order of a request's life: success, retries, refusals.

#include "tests/router/dispatch/run_fixture.h"

namespace baton::router::dispatch {
namespace {

TEST_F(RunTest, StreamsARequestInTheOrderOfTheDesign) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  Admit();
  legs_.prefill().send(PrefillStarted{});
  Reserve();
  clock_.Advance(absl::Milliseconds(30));
  legs_.prefill().send(PrefillSealed{absl::Milliseconds(20)});
  Commit();
  legs_.prefill().send(PrefillVerdict{true});
  legs_.prefill().send(LegEnded{absl::OkStatus()});
  clock_.Advance(absl::Milliseconds(5));
  Token(0);
  Token(1);
  FinishSample(2);

  EXPECT_THAT(journal_,
              ElementsAre("admit p0 attempt 1", "start d0", "attach p0"));
  EXPECT_EQ(legs_.prefill().tickets, std::vector<std::string>{"ticket-1"});
  EXPECT_EQ(legs_.prefill().start.handoff, legs_.decode().start.handoff);
  ASSERT_EQ(sink.events.size(), 4u);
  EXPECT_EQ(std::get<ClientStarted>(sink.events[0]).prefill_worker, "p0");
  EXPECT_EQ(std::get<ClientStarted>(sink.events[0]).decode_worker, "d0");
  EXPECT_EQ(std::get<ClientDelta>(sink.events[1]).text, "x");
  EXPECT_EQ(std::get<ClientDelta>(sink.events[2]).sequence, 1);
  const auto& finished = std::get<ClientFinished>(sink.events[3]);
  EXPECT_EQ(finished.output_tokens, 2);
  EXPECT_EQ(finished.timeline.prefill_us, 20'000);
  EXPECT_EQ(finished.timeline.transfer_us, 10'000);
  EXPECT_EQ(finished.timeline.first_decode_us, 5'000);
  EXPECT_EQ(finished.timeline.first_token_us,
            finished.timeline.queue_us + finished.timeline.prefill_us +
                finished.timeline.transfer_us +
                finished.timeline.first_decode_us);
  EXPECT_TRUE(sink.finished);
  EXPECT_OK(sink.final);
  EXPECT_FALSE(legs_.decode().cancelled);
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"ok\"} 1"));
  EXPECT_TRUE(HasMetric("baton_time_to_first_token_seconds_count 1"));
  EXPECT_TRUE(HasMetric("baton_prompt_tokens_total 3"));
  EXPECT_TRUE(HasMetric("baton_generation_tokens_total 2"));
  EXPECT_TRUE(HasMetric("baton_inter_token_latency_seconds_count 1"));
  ExpectClean();
}

TEST_F(RunTest, ReservesJustInTimeWhenThePromptHasToWait) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(PrefillAdmitted{absl::Seconds(2)});
  EXPECT_EQ(run->state(), RunState::kAdmitted);
  Advance(absl::Milliseconds(1799));
  EXPECT_TRUE(legs_.decodes.empty());
  Advance(absl::Milliseconds(1));  // reserve_ahead is 200 ms
  EXPECT_EQ(run->state(), RunState::kReserving);
  run->ClientGone();
  ExpectClean();
}

TEST_F(RunTest, ReservesWhenThePromptStartsBeforeItsEstimate) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(PrefillAdmitted{absl::Seconds(20)});
  legs_.prefill().send(PrefillStarted{});
  EXPECT_EQ(run->state(), RunState::kReserving);
  run->ClientGone();
  ExpectClean();
}

TEST_F(RunTest, SecondPrefillStartsOnlyAfterReticketed) {
  AddWorkers(2, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kTransferring, *run);
  const std::string first = legs_.prefill().worker.name;
  legs_.prefill().send(LegEnded{absl::UnavailableError("killed")});
  EXPECT_EQ(run->state(), RunState::kReticketing);
  EXPECT_EQ(legs_.prefills.size(), 1u);
  EXPECT_THAT(legs_.decode().retickets, ElementsAre(2));

  legs_.decode().Send(DecodeReticketed{{"ticket-2"}, false});
  ASSERT_EQ(legs_.prefills.size(), 2u);
  EXPECT_NE(legs_.prefill().worker.name, first);
  EXPECT_EQ(legs_.prefill().start.attempt, 2);
  EXPECT_EQ(legs_.prefill().start.handoff, legs_.decode().start.handoff);
  Admit();
  EXPECT_EQ(legs_.prefill().tickets, std::vector<std::string>{"ticket-2"});
  Commit(2);
  Token(0);
  FinishSample(1);
  EXPECT_OK(sink.final);
  EXPECT_EQ(legs_.decodes.size(), 1u);
  EXPECT_TRUE(HasMetric("baton_retries_total{reason=\"prefill_lost\"} 1"));
  ExpectClean();
}

TEST_F(RunTest, TheOnlyPrefillWorkerIsTriedAgain) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kReadmitting, *run);
  EXPECT_EQ(legs_.prefills.size(), 2u);
  EXPECT_EQ(legs_.prefill().worker.name, "p0");
  run->Cancel(absl::CancelledError("end"));
  ExpectClean();
}

TEST_F(RunTest, TwoFailedAttemptsEndWithWorkerLost) {
  AddWorkers(3, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kReadmitting, *run);
  Admit();
  legs_.prefill().send(LegEnded{absl::UnavailableError("killed again")});
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("2 of 2 attempts failed")));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kWorkerLost);
  EXPECT_EQ(legs_.prefills.size(), 2u);
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"worker_lost\"} 1"));
  EXPECT_TRUE(HasMetric("baton_time_to_first_token_seconds_count 0"));
  ExpectClean();
}

TEST_F(RunTest, RejectedHandOffIsTriedOnceMoreThenDataLoss) {
  AddWorkers(2, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kTransferring, *run);
  const DecodeHandoffFailed failed{1, ErrorReason::kHandoffRejected,
                                   "checksum of c4 in layer 2"};
  legs_.decode().Send(failed);
  EXPECT_EQ(run->state(), RunState::kReticketing);
  EXPECT_TRUE(legs_.prefills[0]->cancelled);
  legs_.decode().Send(DecodeReticketed{{"ticket-2"}, false});
  Admit();
  // A late word about the first attempt changes nothing.
  legs_.decode().Send(failed);
  EXPECT_EQ(run->state(), RunState::kTransferring);
  legs_.decode().Send(DecodeHandoffFailed{2, ErrorReason::kHandoffRejected,
                                          "checksum of c4 in layer 2"});
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("checksum of c4 in layer 2")));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kHandoffRejected);
  ExpectClean();
}

TEST_F(RunTest, CommitThatCrossesAReticketWins) {
  AddWorkers(2, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kTransferring, *run);
  legs_.prefill().send(LegEnded{absl::UnavailableError("link lost")});
  Commit(1);
  EXPECT_EQ(run->state(), RunState::kCommitted);
  legs_.decode().Send(DecodeReticketed{{}, /*already_committed=*/true});
  Token(0);
  FinishSample(1);
  EXPECT_OK(sink.final);
  EXPECT_EQ(legs_.prefills.size(), 1u);
  ExpectClean();
}

TEST_F(RunTest, PrefillLossAfterCommitDoesNotMatter) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kCommitted, *run);
  EXPECT_TRUE(legs_.prefill().let_go);
  legs_.prefill().send(LegEnded{absl::UnavailableError("killed")});
  Token(0);
  FinishSample(1);
  EXPECT_OK(sink.final);
  ExpectClean();
}

TEST_F(RunTest, DecodeLossBeforeOutputRestartsOnAnotherPair) {
  AddWorkers(1, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kCommitted, *run);
  const std::string first = legs_.decode().worker.name;
  const HandoffId first_handoff = legs_.decode().start.handoff;
  legs_.decode().End(absl::UnavailableError("killed"));
  EXPECT_EQ(run->state(), RunState::kAdmitting);
  Admit();
  Reserve();
  EXPECT_NE(legs_.decode().worker.name, first);
  EXPECT_NE(legs_.decode().start.handoff, first_handoff);
  EXPECT_EQ(legs_.prefill().start.attempt, 1);
  Commit();
  Token(0);
  FinishSample(1);
  EXPECT_OK(sink.final);
  int started = 0;
  for (const ClientEvent& event : sink.events) {
    started += std::holds_alternative<ClientStarted>(event);
  }
  EXPECT_EQ(started, 1);
  ExpectClean();
}

TEST_F(RunTest, OneDeadDecodeWorkerCountsOnceWhenPrefillSeesItFirst) {
  AddWorkers(2, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kTransferring, *run);
  legs_.prefill().send(LegEnded{absl::UnavailableError("receiver is gone")});
  ASSERT_EQ(run->state(), RunState::kReticketing);
  legs_.decode().End(absl::UnavailableError("killed"));
  EXPECT_EQ(run->state(), RunState::kAdmitting);
  DriveTo(RunState::kStreaming, *run);
  FinishSample(1);
  EXPECT_OK(sink.final);
  ExpectClean();
}

TEST_F(RunTest, DecodeLossAfterOutputIsUnavailable) {
  AddWorkers(2, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kStreaming, *run);
  legs_.decode().End(absl::UnavailableError("killed"));
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kWorkerLost);
  EXPECT_EQ(legs_.decodes.size(), 1u);
  ExpectClean();
}

TEST_F(RunTest, TransportCancelOfDecodeIsALoss) {
  AddWorkers(1, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  DriveTo(RunState::kTransferring, *run);
  legs_.decode().End(absl::CancelledError("RST_STREAM"));
  EXPECT_EQ(run->state(), RunState::kAdmitting);
  run->ClientGone();
  ExpectClean();
}

TEST_F(RunTest, RefusedPrefillIsReplacedUntilNoneIsLeft) {
  AddWorkers(2, 1);
  context_.options.queue_timeout = absl::ZeroDuration();
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(LegEnded{absl::ResourceExhaustedError("backlog")});
  EXPECT_EQ(legs_.prefills.size(), 2u);
  EXPECT_NE(legs_.prefills[0]->worker.name, legs_.prefills[1]->worker.name);
  legs_.prefill().send(LegEnded{absl::ResourceExhaustedError("backlog")});
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kOverloaded);
  const int64_t delay = request::InfoOf(sink.final).retry_delay_ms;
  EXPECT_GE(delay, 500);
  EXPECT_LE(delay, 1000);
  EXPECT_TRUE(sink.events.empty());
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"overloaded\"} 1"));
  EXPECT_TRUE(HasMetric("baton_request_queue_seconds_count 0"));
  ExpectClean();
}

TEST_F(RunTest, RefusedReservationReleasesThePrefillFirst) {
  AddWorkers(1, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  Admit();
  const std::string first = legs_.decode().worker.name;
  legs_.decode().End(absl::ResourceExhaustedError("blocks"));
  EXPECT_THAT(journal_,
              ElementsAre("admit p0 attempt 1", absl::StrCat("start ", first),
                          "cancel p0", "admit p0 attempt 1"));
  Admit();
  EXPECT_NE(legs_.decode().worker.name, first);
  run->Cancel(absl::CancelledError("end"));
  ExpectClean();
}

TEST_F(RunTest, DrainingWorkerIsARefusal) {
  AddWorkers(1, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  Admit();
  legs_.decode().End(request::MakeError(absl::StatusCode::kUnavailable,
                                        "draining",
                                        {.reason = ErrorReason::kDraining}));
  EXPECT_EQ(run->state(), RunState::kAdmitting);
  run->Cancel(absl::CancelledError("end"));
  ExpectClean();
}

TEST_F(RunTest, WaitsForRoomAndGoesOnWithTheNextReport) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(LegEnded{absl::ResourceExhaustedError("backlog")});
  EXPECT_EQ(run->state(), RunState::kQueued);
  EXPECT_EQ(queue_.waiting(), 1);
  Report("p0");
  EXPECT_EQ(run->state(), RunState::kAdmitting);
  DriveTo(RunState::kStreaming, *run);
  FinishSample(1);
  EXPECT_OK(sink.final);
  ExpectClean();
}

TEST_F(RunTest, QueueTimeoutRefuses) {
  AddWorkers(1, 1);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(LegEnded{absl::ResourceExhaustedError("backlog")});
  Advance(context_.options.queue_timeout - absl::Milliseconds(1));
  EXPECT_FALSE(sink.finished);
  Advance(absl::Milliseconds(1));
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GT(request::InfoOf(sink.final).retry_delay_ms, 0);
  ExpectClean();
}

TEST_F(RunTest, NeverFitsIsFinal) {
  AddWorkers(2, 2);
  FakeSink sink;
  const auto run = Begin(&sink);
  legs_.prefill().send(LegEnded{absl::InvalidArgumentError("too long")});
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(legs_.prefills.size(), 1u);
  ExpectClean();
}

TEST_F(RunTest, NoWorkerIsUnavailable) {
  AddWorkers(1, 0);
  FakeSink sink;
  const auto run = Begin(&sink);
  EXPECT_THAT(sink.final, StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("no decode worker serves")));
  EXPECT_EQ(ReasonOf(sink.final), ErrorReason::kNoWorker);
  ExpectClean();
}

}  // namespace
}  // namespace baton::router::dispatch
