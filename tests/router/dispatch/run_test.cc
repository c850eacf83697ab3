#include "router/dispatch/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/metrics/metrics.h"
#include "common/request/request.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "tests/router/dispatch/fake_legs.h"

namespace baton::router::dispatch {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Within a fixture `Run` names a member of testing::Test.
using RequestRun = Run;

class RunTest : public ::testing::Test {
 protected:
  explicit RunTest(RunOptions options = {})
      : metrics_(&set_),
        random_(1),
        timers_(&clock_),
        queue_({.max_running = 4, .max_waiting = 4}),
        registry_(&clock_, {}),
        legs_(&journal_) {
    context_ = {.clock = &clock_,
                .random = &random_,
                .timers = &timers_,
                .queue = &queue_,
                .registry = &registry_,
                .legs = &legs_,
                .metrics = &metrics_,
                .options = options,
                .on_end = [this](const RequestId&) { ++ended_; }};
    registry_.set_on_capacity([this] { queue_.CapacityFreed(); });
    bugs_before_ = BugCount();
  }

  void AddWorker(const std::string& name, bool prefill,
                 registry::WorkerState state = registry::WorkerState::kServing,
                 Incarnation incarnation = 7) {
    registry::WorkerIdentity worker;
    worker.name = name;
    worker.prefill = prefill;
    worker.decode = !prefill;
    worker.incarnation = incarnation;
    worker.endpoints = {absl::StrCat(name, ":1")};
    worker.model_digest = std::string(32, 'm');
    worker.state_format_hash = std::string(32, 's');
    worker.blocks = 64;
    worker.slots = 16;
    worker.max_positions = 4096;
    worker.max_backlog_tokens = 8192;
    ASSERT_OK(registry_.Register(worker));
    Report(name, state, incarnation);
  }
  void Report(const std::string& name,
              registry::WorkerState state = registry::WorkerState::kServing,
              Incarnation incarnation = 7) {
    registry::LoadReport load;
    load.sequence = ++sequence_;
    load.state = state;
    load.free_blocks = 64;
    load.free_slots = 16;
    ASSERT_OK(registry_.Heartbeat(name, incarnation, load));
  }
  void AddWorkers(int prefills, int decodes) {
    for (int i = 0; i < prefills; ++i) AddWorker(absl::StrCat("p", i), true);
    for (int i = 0; i < decodes; ++i) AddWorker(absl::StrCat("d", i), false);
  }

  std::shared_ptr<RequestRun> Begin(FakeSink* sink, int32_t n = 1) {
    RequestSpec spec;
    spec.id = RequestId::Mint(&random_);
    spec.prompt_ids = std::make_shared<const std::vector<int32_t>>(
        std::vector<int32_t>{1, 2, 3});
    spec.sampling.max_tokens = 8;
    spec.sampling.n = n;
    spec.return_token_ids = true;
    spec.accepted = clock_.Now();
    spec.deadline = clock_.Now() + absl::Seconds(60);
    EXPECT_TRUE(queue_.TryArrive());
    auto run = RequestRun::Create(&context_, std::move(spec), sink);
    sink->run = run.get();
    run->Start();
    return run;
  }
  void Advance(absl::Duration d) {
    clock_.Advance(d);
    timers_.RunDue();
  }

  // Steps of the good path.
  void Admit() { legs_.prefill().send(PrefillAdmitted{absl::ZeroDuration()}); }
  void Reserve(const std::string& ticket = "ticket-1") {
    legs_.decode().Send(DecodeReserved{{ticket}});
  }
  void Commit(Attempt attempt = 1) {
    legs_.decode().Send(DecodeCommitted{attempt, absl::Milliseconds(1)});
  }
  void Token(int64_t sequence, int32_t index = 0) {
    legs_.decode().Send(DecodeTokens{
        .index = index, .sequence = sequence, .token_ids = {100}, .text = "x"});
  }
  void FinishSample(int64_t tokens, int32_t index = 0) {
    legs_.decode().Send(
        DecodeSampleFinished{index, request::FinishReason::kStop,
                             static_cast<int32_t>(tokens), tokens});
  }
  // From the start up to `state`, with the workers' help.
  void DriveTo(RunState state, const RequestRun& run) {
    while (run.state() != state) {
      switch (run.state()) {
        case RunState::kAdmitting:
          if (state == RunState::kAdmitted) {
            legs_.prefill().send(PrefillAdmitted{absl::Seconds(3)});
          } else {
            Admit();
          }
          break;
        case RunState::kReserving:
          Reserve();
          break;
        case RunState::kTransferring:
          if (state == RunState::kReticketing ||
              state == RunState::kReadmitting) {
            legs_.prefill().send(LegEnded{absl::UnavailableError("gone")});
          } else {
            Commit();
          }
          break;
        case RunState::kReticketing:
          legs_.decode().Send(DecodeReticketed{{"ticket-2"}, false});
          break;
        case RunState::kCommitted:
          Token(0);
          break;
        default:
          FAIL() << "no way from " << RunStateName(run.state());
      }
    }
  }
  // Nothing is held anywhere.
  void ExpectClean() {
    EXPECT_EQ(legs_.held(), 0);
    EXPECT_EQ(queue_.running(), 0);
    EXPECT_EQ(queue_.waiting(), 0);
    for (const registry::WorkerView& worker : *registry_.snapshot()) {
      EXPECT_EQ(worker.in_flight, 0) << worker.identity->name;
    }
    EXPECT_EQ(BugCount(), bugs_before_);
  }
  bool HasMetric(const std::string& line) {
    return set_.Expose().find(absl::StrCat(line, "\n")) != std::string::npos;
  }

  baton::testing::FakeClock clock_;
  baton::metrics::MetricSet set_;
  metrics::RouterMetrics metrics_;
  SeededRandom random_;
  TimerQueue timers_;
  AdmissionQueue queue_;
  registry::Registry registry_;
  Journal journal_;
  FakeLegs legs_;
  RunContext context_;
  int ended_ = 0;
  int64_t sequence_ = 0;
  int64_t bugs_before_ = 0;
};

ErrorReason ReasonOf(const absl::Status& status) {
  return request::InfoOf(status).reason;
}

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
