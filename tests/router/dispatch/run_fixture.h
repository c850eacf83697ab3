// Fixture of the dispatch tests: fake legs, a fake clock, a registry and
// metrics around one Run.
#pragma once

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
#include "router/dispatch/run.h"
#include "tests/router/dispatch/fake_legs.h"

namespace baton::router::dispatch {

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

}  // namespace baton::router::dispatch
