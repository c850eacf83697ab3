#include "router/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/request/request.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"

namespace baton::router::registry {
namespace {

using baton::testing::StatusIs;

WorkerIdentity Worker(const std::string& name, Incarnation incarnation = 1) {
  WorkerIdentity out;
  out.name = name;
  out.prefill = true;
  out.incarnation = incarnation;
  out.endpoints = {name + ":1"};
  out.model_digest = std::string(32, 'm');
  out.state_format_hash = std::string(32, 's');
  out.max_positions = 4096;
  return out;
}

LoadReport Load(int64_t sequence, WorkerState state = WorkerState::kServing) {
  LoadReport out;
  out.sequence = sequence;
  out.state = state;
  return out;
}

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest() : registry_(&clock_, {}) {
    registry_.set_on_capacity([this] { ++capacity_changes_; });
  }
  WorkerView Only() {
    const auto snapshot = registry_.snapshot();
    EXPECT_EQ(snapshot->size(), 1u);
    return snapshot->front();
  }
  WorkerState State() { return Only().state; }

  baton::testing::FakeClock clock_;
  Registry registry_;
  int capacity_changes_ = 0;
};

TEST_F(RegistryTest, IncompleteRegistrationNamesTheField) {
  const std::vector<
      std::pair<std::function<void(WorkerIdentity*)>, const char*>>
      cases = {
          {[](WorkerIdentity* w) { w->name = ""; }, "worker.name"},
          {[](WorkerIdentity* w) { w->name = std::string(129, 'x'); },
           "worker.name"},
          {[](WorkerIdentity* w) { w->prefill = false; }, "worker.roles"},
          {[](WorkerIdentity* w) { w->incarnation = 0; }, "worker.incarnation"},
          {[](WorkerIdentity* w) { w->endpoints = {}; }, "worker.endpoints"},
          {[](WorkerIdentity* w) { w->model_digest = "short"; },
           "worker.model_digest"},
          {[](WorkerIdentity* w) { w->state_format_hash = ""; },
           "worker.state_format_hash"},
          {[](WorkerIdentity* w) { w->max_positions = 0; },
           "worker.max_positions"},
      };
  for (const auto& [change, field] : cases) {
    WorkerIdentity worker = Worker("a");
    change(&worker);
    const absl::Status status = registry_.Register(worker);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(request::InfoOf(status).field, field);
  }
  EXPECT_TRUE(registry_.snapshot()->empty());
}

TEST_F(RegistryTest, FirstWorkerFixesTheModel) {
  ASSERT_OK(registry_.Register(Worker("a")));
  WorkerIdentity other = Worker("b");
  other.model_digest = std::string(32, 'x');
  EXPECT_THAT(registry_.Register(other),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  other = Worker("b");
  other.state_format_hash = std::string(32, 'x');
  EXPECT_THAT(registry_.Register(other),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(registry_.mismatches(), 2);
  ASSERT_OK(registry_.Register(Worker("b")));
}

TEST_F(RegistryTest, GivenDigestRefusesTheFirstWorkerToo) {
  Registry strict(&clock_, {.model_digest = std::string(32, 'x')});
  EXPECT_THAT(strict.Register(Worker("a")),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RegistryTest, LoneWorkerMayReturnWithAnotherStateFormat) {
  ASSERT_OK(registry_.Register(Worker("a")));
  WorkerIdentity again = Worker("a", 2);
  again.state_format_hash = std::string(32, 'x');
  EXPECT_OK(registry_.Register(again));
}

TEST_F(RegistryTest, TakesWorkOnlyAfterItsFirstReport) {
  ASSERT_OK(registry_.Register(Worker("a")));
  EXPECT_EQ(State(), WorkerState::kLoading);
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(0)));
  EXPECT_EQ(State(), WorkerState::kServing);
  EXPECT_EQ(capacity_changes_, 1);
}

TEST_F(RegistryTest, ThreeMissedHeartbeatsAreALossAndTheNextAReturn) {
  ASSERT_OK(registry_.Register(Worker("a")));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(1)));
  clock_.Advance(absl::Seconds(3));
  registry_.Sweep();
  EXPECT_EQ(State(), WorkerState::kServing);
  clock_.Advance(absl::Milliseconds(1));
  registry_.Sweep();
  EXPECT_EQ(State(), WorkerState::kLost);
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(2)));
  EXPECT_EQ(State(), WorkerState::kServing);
  clock_.Advance(kForgetAfter + absl::Seconds(4));
  registry_.Sweep();
  registry_.Sweep();
  EXPECT_TRUE(registry_.snapshot()->empty());
  EXPECT_THAT(registry_.Heartbeat("a", 1, Load(3)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RegistryTest, StatesOfTheWorkerAreKept) {
  ASSERT_OK(registry_.Register(Worker("a")));
  int64_t sequence = 0;
  for (const WorkerState state :
       {WorkerState::kDraining, WorkerState::kStalled, WorkerState::kServing}) {
    ASSERT_OK(registry_.Heartbeat("a", 1, Load(++sequence, state)));
    EXPECT_EQ(State(), state);
  }
}

TEST_F(RegistryTest, OldReportsAreIgnored) {
  ASSERT_OK(registry_.Register(Worker("a")));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(5)));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(5, WorkerState::kStalled)));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(4, WorkerState::kStalled)));
  EXPECT_EQ(State(), WorkerState::kServing);
}

TEST_F(RegistryTest, NewIncarnationReplacesTheOld) {
  ASSERT_OK(registry_.Register(Worker("a", 1)));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(9)));
  const HandoffId handoff{1, 1};
  registry_.AddInFlight(Only().ref(), {.handoff = handoff});
  const WorkerRef old = Only().ref();
  ASSERT_OK(registry_.Register(Worker("a", 2)));
  EXPECT_EQ(State(), WorkerState::kLoading);
  EXPECT_EQ(Only().in_flight, 0);
  EXPECT_THAT(registry_.Heartbeat("a", 1, Load(10)),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(registry_.Heartbeat("a", 2, Load(0)));
  // What still runs on the old one does not touch the new one.
  registry_.ReportFailure(old);
  registry_.RemoveInFlight(old, handoff, WorkerRole::kPrefill);
  EXPECT_FALSE(Only().suspect);
}

TEST_F(RegistryTest, RegisteringAgainKeepsLoadAndRequests) {
  ASSERT_OK(registry_.Register(Worker("a")));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(1)));
  registry_.AddInFlight(Only().ref(), {.handoff = {1, 1}});
  ASSERT_OK(registry_.Register(Worker("a")));
  EXPECT_EQ(State(), WorkerState::kServing);
  EXPECT_EQ(Only().in_flight, 1);
}

TEST_F(RegistryTest, ReportedRequestsAreNotCountedTwice) {
  ASSERT_OK(registry_.Register(Worker("a")));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(1)));
  const HandoffId one{1, 1};
  const HandoffId two{2, 1};
  registry_.AddInFlight(Only().ref(), {.handoff = one, .prompt_tokens = 10});
  registry_.AddInFlight(Only().ref(), {.handoff = two, .prompt_tokens = 5});
  EXPECT_EQ(Only().unreported_prompt_tokens, 15);
  LoadReport load = Load(2);
  load.backlog_tokens = 10;
  load.admitted_since_report = {one};
  ASSERT_OK(registry_.Heartbeat("a", 1, load));
  EXPECT_EQ(Only().unreported_prompt_tokens, 5);
  EXPECT_EQ(Only().in_flight, 2);
  registry_.RemoveInFlight(Only().ref(), two, WorkerRole::kPrefill);
  EXPECT_EQ(Only().unreported_prompt_tokens, 0);
  EXPECT_EQ(Only().in_flight, 1);
}

TEST_F(RegistryTest, RefusalHoldsUntilAReportOrAnEnd) {
  ASSERT_OK(registry_.Register(Worker("a")));
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(1)));
  registry_.ReportRefusal(Only().ref());
  registry_.ReportFailure(Only().ref());
  EXPECT_TRUE(Only().refused);
  EXPECT_TRUE(Only().suspect);
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(2)));
  EXPECT_FALSE(Only().refused);
  EXPECT_FALSE(Only().suspect);
  registry_.AddInFlight(Only().ref(), {.handoff = {1, 1}});
  registry_.ReportRefusal(Only().ref());
  registry_.RemoveInFlight(Only().ref(), {1, 1}, WorkerRole::kPrefill);
  EXPECT_FALSE(Only().refused);
}

TEST_F(RegistryTest, SnapshotsDoNotChange) {
  ASSERT_OK(registry_.Register(Worker("a")));
  const auto before = registry_.snapshot();
  EXPECT_EQ(before, registry_.snapshot());
  ASSERT_OK(registry_.Heartbeat("a", 1, Load(1)));
  EXPECT_EQ(before->front().state, WorkerState::kLoading);
  EXPECT_NE(before, registry_.snapshot());
}

TEST_F(RegistryTest, ServesWithOneOfEachRole) {
  EXPECT_FALSE(registry_.CanServe());
  ASSERT_OK(registry_.Register(Worker("p")));
  ASSERT_OK(registry_.Heartbeat("p", 1, Load(1)));
  EXPECT_FALSE(registry_.CanServe());
  WorkerIdentity decode = Worker("d");
  decode.prefill = false;
  decode.decode = true;
  ASSERT_OK(registry_.Register(decode));
  EXPECT_FALSE(registry_.CanServe());
  ASSERT_OK(registry_.Heartbeat("d", 1, Load(1)));
  EXPECT_TRUE(registry_.CanServe());
  ASSERT_OK(registry_.Heartbeat("d", 1, Load(2, WorkerState::kDraining)));
  EXPECT_FALSE(registry_.CanServe());
}

}  // namespace
}  // namespace baton::router::registry
