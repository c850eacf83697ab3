#include "router/policy/choose_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/request/request.h"
#include "common/testing/status_matchers.h"

namespace baton::router::policy {
namespace {

using baton::testing::StatusIs;
using registry::Snapshot;
using registry::WorkerState;
using registry::WorkerView;
using request::ErrorReason;

WorkerView Worker(const std::string& name, bool prefill) {
  auto identity = std::make_shared<registry::WorkerIdentity>();
  identity->name = name;
  identity->prefill = prefill;
  identity->decode = !prefill;
  identity->incarnation = 1;
  identity->endpoints = {name};
  identity->blocks = 100;
  identity->slots = 10;
  identity->max_positions = 4096;
  identity->max_backlog_tokens = 1000;
  WorkerView view;
  view.identity = identity;
  view.state = WorkerState::kServing;
  view.load.free_blocks = 100;
  view.load.free_slots = 10;
  return view;
}

Snapshot Cluster(int prefills, int decodes) {
  Snapshot out;
  for (int i = 0; i < decodes; ++i) {
    out.push_back(Worker(absl::StrCat("d", i), false));
  }
  for (int i = 0; i < prefills; ++i) {
    out.push_back(Worker(absl::StrCat("p", i), true));
  }
  return out;
}

WorkerView& Of(Snapshot* snapshot, const std::string& name) {
  for (WorkerView& worker : *snapshot) {
    if (worker.identity->name == name) return worker;
  }
  return snapshot->front();
}

ErrorReason ReasonOf(const absl::StatusOr<Pair>& pair) {
  return request::InfoOf(pair.status()).reason;
}

// smg-project/smg#1714: all traffic went to one worker: 400 distinct prompts, 4
// workers of each role.
TEST(ChoosePairTest, SpreadsIdleTraffic) {
  for (const bool counted : {false, true}) {
    Snapshot snapshot = Cluster(4, 4);
    SeededRandom random(17);
    std::map<std::string, int> hits;
    for (int i = 0; i < 400; ++i) {
      ASSERT_OK_AND_ASSIGN(const Pair pair,
                           ChoosePair(snapshot, {}, {}, &random));
      ++hits[pair.prefill.name];
      ++hits[pair.decode.name];
      if (counted) {  // as the registry does while requests run
        Of(&snapshot, pair.prefill.name).unreported_prompt_tokens += 10;
        Of(&snapshot, pair.decode.name).unreported_samples += 1;
      }
    }
    ASSERT_EQ(hits.size(), 8u);
    for (const auto& [name, count] : hits) {
      EXPECT_LE(count, 140) << name << " counted " << counted;
      EXPECT_GE(count, 60) << name << " counted " << counted;
    }
  }
}

TEST(ChoosePairTest, PrefersTheLessLoadedOfTwo) {
  Snapshot snapshot = Cluster(2, 2);
  Of(&snapshot, "p0").load.backlog_tokens = 500;
  Of(&snapshot, "d1").load.free_blocks = 10;
  SeededRandom random(1);
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(const Pair pair,
                         ChoosePair(snapshot, {}, {}, &random));
    EXPECT_EQ(pair.prefill.name, "p1");
    EXPECT_EQ(pair.decode.name, "d0");
  }
}

TEST(ChoosePairTest, LoadCountsTheScarcerOfBlocksAndSlots) {
  WorkerView worker = Worker("d", false);
  EXPECT_EQ(DecodeLoad(worker), 0.0);
  worker.load.free_slots = 2;
  EXPECT_DOUBLE_EQ(DecodeLoad(worker), 0.8);
  worker.load.free_blocks = 10;
  EXPECT_DOUBLE_EQ(DecodeLoad(worker), 0.9);
  worker.unreported_blocks = 5;
  EXPECT_DOUBLE_EQ(DecodeLoad(worker), 0.95);
}

TEST(ChoosePairTest, TiesGoToOneNode) {
  Snapshot snapshot = Cluster(2, 2);
  for (WorkerView& worker : snapshot) {
    auto identity =
        std::make_shared<registry::WorkerIdentity>(*worker.identity);
    identity->node = identity->name.substr(1);
    worker.identity = identity;
  }
  SeededRandom random(1);
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(const Pair pair,
                         ChoosePair(snapshot, {}, {}, &random));
    EXPECT_EQ(pair.prefill.name.substr(1), pair.decode.name.substr(1));
  }
}

TEST(ChoosePairTest, OnlyServingWorkersAreChosen) {
  for (const WorkerState state : {WorkerState::kLoading, WorkerState::kDraining,
                                  WorkerState::kStalled, WorkerState::kLost}) {
    Snapshot snapshot = Cluster(1, 1);
    SeededRandom random(1);
    ASSERT_OK(ChoosePair(snapshot, {}, {}, &random));
    Of(&snapshot, "d0").state = state;
    const auto pair = ChoosePair(snapshot, {}, {}, &random);
    EXPECT_THAT(pair, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(ReasonOf(pair), ErrorReason::kNoWorker);
  }
}

TEST(ChoosePairTest, RefusedIsFinalInARoundAndFailedOnlyDiscouraged) {
  const Snapshot snapshot = Cluster(2, 1);
  SeededRandom random(1);
  Exclusions exclusions{.failed = {"p0"}};
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       ChoosePair(snapshot, {}, exclusions, &random));
  EXPECT_EQ(pair.prefill.name, "p1");
  exclusions.refused = {"p1"};
  ASSERT_OK_AND_ASSIGN(pair, ChoosePair(snapshot, {}, exclusions, &random));
  EXPECT_EQ(pair.prefill.name, "p0");
  exclusions.refused = {"p0", "p1"};
  EXPECT_EQ(ReasonOf(ChoosePair(snapshot, {}, exclusions, &random)),
            ErrorReason::kOverloaded);
}

TEST(ChoosePairTest, SuspectAndFullWorkersComeLast) {
  Snapshot snapshot = Cluster(3, 1);
  Of(&snapshot, "p0").suspect = true;
  Of(&snapshot, "p1").refused = true;
  SeededRandom random(1);
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(const Pair pair,
                         ChoosePair(snapshot, {}, {}, &random));
    EXPECT_EQ(pair.prefill.name, "p2");
  }
  Of(&snapshot, "p2").state = WorkerState::kLost;
  ASSERT_OK_AND_ASSIGN(Pair pair, ChoosePair(snapshot, {}, {}, &random));
  EXPECT_EQ(pair.prefill.name, "p1");
}

TEST(ChoosePairTest, PositionsDecideWhatFits) {
  const Snapshot snapshot = Cluster(1, 1);
  SeededRandom random(1);
  ASSERT_OK(ChoosePair(snapshot, {.positions = 4096}, {}, &random));
  EXPECT_EQ(ReasonOf(ChoosePair(snapshot, {.positions = 4097}, {}, &random)),
            ErrorReason::kNeverFits);
  EXPECT_EQ(
      ReasonOf(ChoosePair(snapshot, {.prompt_tokens = 4097}, {}, &random)),
      ErrorReason::kNeverFits);
}

TEST(ChoosePairTest, PinsAreFollowed) {
  const Snapshot snapshot = Cluster(4, 4);
  SeededRandom random(1);
  const PlacementQuery query{.pinned_prefill = "p2", .pinned_decode = "d3"};
  ASSERT_OK_AND_ASSIGN(const Pair pair,
                       ChoosePair(snapshot, query, {}, &random));
  EXPECT_EQ(pair.prefill.name, "p2");
  EXPECT_EQ(pair.decode.name, "d3");
  // A decode worker is no prefill worker.
  EXPECT_EQ(
      ReasonOf(ChoosePair(snapshot, {.pinned_prefill = "d0"}, {}, &random)),
      ErrorReason::kInvalidField);
}

TEST(ChoosePairTest, EmptyClusterHasNoWorker) {
  SeededRandom random(1);
  EXPECT_EQ(ReasonOf(ChoosePair({}, {}, {}, &random)), ErrorReason::kNoWorker);
}

}  // namespace
}  // namespace baton::router::policy
