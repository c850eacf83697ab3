// {SIGKILL, SIGSTOP 5 s, dropped link, corrupted segment} x {router, prefill,
// decode} x {queued, reserved, mid-prefill, sealed, committed, streaming},
// under load. Every request ends by its deadline with a documented status or
// with the right full text; survivors hold nothing 2 s later; a restarted
// member rejoins.
//
// A dropped link or a corrupted segment happens between a prefill and a decode
// worker: at the prefill's end (which sends) and at the decode's (which
// receives). A router has no link, so those cells do not exist.

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/request/request.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"

namespace baton::integration {
namespace {

constexpr int32_t kPromptKinds = 6;
constexpr int32_t kOutput = 40;

v1::GenerateRequest Request(int32_t kind) {
  v1::GenerateRequest request;
  const int32_t tokens = 300 + 130 * kind;
  for (int32_t i = 0; i < tokens; ++i) {
    request.mutable_token_ids()->add_ids(300 + (i * (3 + kind)) % 1500);
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(kOutput);
  request.mutable_sampling()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  return request;
}

struct State {
  const char* name;
  // Slows things down so that the state lasts; armed in all workers of the
  // role.
  const char* prefill_delay;
  const char* decode_delay;
  // Seen when this gauge of the worker is above 0.
  const char* worker;
  const char* gauge;
};

constexpr State kStates[] = {
    {"queued", "prefill.before_step=sleep:60", "", "prefill-0",
     "baton_sequences{state=\"waiting\"}"},
    {"reserved", "prefill.before_step=sleep:60", "", "decode-0",
     "baton_sequences{state=\"reserved\"}"},
    {"mid_prefill", "prefill.before_step=sleep:60", "", "prefill-0",
     "baton_sequences{state=\"running\"}"},
    {"sealed", "", "decode.before_commit=sleep:150", "prefill-0",
     "baton_sequences{state=\"sealed\"}"},
    {"committed", "", "decode.after_commit=sleep:150", "decode-0",
     "baton_sequences{state=\"running\"}"},
    {"streaming", "", "decode.before_step=sleep:20", "decode-0",
     "baton_sequences{state=\"running\"}"},
};

struct Cell {
  std::string fault;   // kill | stop | drop_link | corrupt
  std::string victim;  // router | prefill | decode
  State state;
  std::string name() const {
    return absl::StrCat(fault, " x ", victim, " x ", state.name);
  }
};

// Clients that ask all the time and judge each end.
class Load {
 public:
  Load(const Cluster* cluster, const std::vector<std::vector<int32_t>>* golden)
      : cluster_(cluster), golden_(golden) {
    for (int32_t i = 0; i < 6; ++i) {
      threads_.emplace_back("load", [this, i] { Run(i); });
    }
  }
  void Stop() {
    stopping_.store(true);
    threads_.clear();
  }
  int completed() const { return completed_.load(); }
  int streaming() const { return streaming_.load(); }
  std::map<std::string, int> ends() {
    MutexLock lock(&mu_);
    return ends_;
  }
  std::vector<std::string> wrong() {
    MutexLock lock(&mu_);
    return wrong_;
  }

 private:
  void Run(int32_t kind) {
    while (!stopping_.load()) {
      std::vector<int32_t> ids;
      bool streams = false;
      const absl::Time start = Clock::Real()->Now();
      const absl::Duration deadline = absl::Seconds(20);
      const absl::Status status = cluster_->client().Generate(
          Request(kind), deadline, [&](const v1::GenerateResponse& event) {
            if (event.has_delta()) {
              if (!streams) streaming_.fetch_add(1);
              streams = true;
              ids.insert(ids.end(), event.delta().token_ids().begin(),
                         event.delta().token_ids().end());
            }
            return true;
          });
      if (streams) streaming_.fetch_sub(1);
      Judge(kind, status, ids, Clock::Real()->Now() - start - deadline);
      if (!status.ok()) absl::SleepFor(absl::Milliseconds(50));
    }
  }

  void Judge(int32_t kind, const absl::Status& status,
             const std::vector<int32_t>& ids, absl::Duration late) {
    const auto& want = (*golden_)[static_cast<size_t>(kind)];
    const bool prefix = ids.size() <= want.size() &&
                        std::equal(ids.begin(), ids.end(), want.begin());
    const request::ErrorReason reason = request::InfoOf(status).reason;
    bool right = prefix && late < absl::Seconds(1);
    switch (status.code()) {
      case absl::StatusCode::kOk:
        right = right && ids == want;
        if (right) completed_.fetch_add(1);
        break;
      case absl::StatusCode::kInternal:
        right = right && reason == request::ErrorReason::kWorkerLost;
        break;
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kResourceExhausted:
      case absl::StatusCode::kDeadlineExceeded:
        break;
      default:
        right = false;
    }
    MutexLock lock(&mu_);
    ++ends_[absl::StrCat(absl::StatusCodeToString(status.code()), "/",
                         request::ErrorReasonName(reason))];
    if (!right) {
      wrong_.push_back(absl::StrCat(status.ToString(), ", ", ids.size(),
                                    " ids, right so far: ", prefix));
    }
  }

  const Cluster* const cluster_;
  const std::vector<std::vector<int32_t>>* const golden_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> completed_{0};
  std::atomic<int> streaming_{0};
  Mutex mu_;
  std::map<std::string, int> ends_ BATON_GUARDED_BY(mu_);
  std::vector<std::string> wrong_ BATON_GUARDED_BY(mu_);
  std::vector<Thread> threads_;
};

class FaultMatrix : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start({.prefill = 2, .decode = 2});
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = *std::move(cluster);
    for (int32_t kind = 0; kind < kPromptKinds; ++kind) {
      std::vector<int32_t> ids;
      ASSERT_OK(cluster_->client().Generate(
          Request(kind), absl::Seconds(60),
          [&ids](const v1::GenerateResponse& event) {
            if (event.has_delta()) {
              ids.insert(ids.end(), event.delta().token_ids().begin(),
                         event.delta().token_ids().end());
            }
            return true;
          }));
      ASSERT_EQ(ids.size(), static_cast<size_t>(kOutput));
      golden_.push_back(std::move(ids));
    }
  }

  bool WaitFor(const std::function<bool()>& condition, absl::Duration timeout) {
    const absl::Time end = Clock::Real()->Now() + timeout;
    while (!condition()) {
      if (Clock::Real()->Now() >= end) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

  void Arm(const std::string& role, const std::string& spec) {
    for (const char* index : {"0", "1"}) {
      ASSERT_OK(cluster_->Arm(absl::StrCat(role, "-", index), spec));
    }
  }

  void RunCell(const Cell& cell) {
    SCOPED_TRACE(cell.name());
    const std::string victim = absl::StrCat(cell.victim, "-0");
    Arm("prefill", cell.state.prefill_delay);
    Arm("decode", cell.state.decode_delay);
    Load load(cluster_.get(), &golden_);
    // Streaming: some sequence of the worker that the gauge belongs to has done
    // several of its 40 slow steps.
    const bool streaming = std::string(cell.state.name) == "streaming";
    const std::string steps = "baton_step_tokens_total{phase=\"decode\"}";
    const double done = cluster_->Value(cell.state.worker, steps);
    EXPECT_TRUE(WaitFor(
        [&] {
          return cluster_->Value(cell.state.worker, cell.state.gauge) > 0 &&
                 (!streaming ||
                  (load.streaming() > 0 &&
                   cluster_->Value(cell.state.worker, steps) > done + 10));
        },
        absl::Seconds(20)))
        << "state not reached";
    Inject(cell, victim);
    EXPECT_OK(cluster_->WaitUntilServing(absl::Seconds(20)))
        << "the victim did not rejoin";
    Arm("prefill", "");
    Arm("decode", "");
    const int before = load.completed();
    EXPECT_TRUE(WaitFor([&] { return load.completed() > before + 6; },
                        absl::Seconds(30)))
        << "no progress after the fault";
    load.Stop();
    EXPECT_OK(cluster_->WaitUntilIdle(absl::Seconds(2)));
    EXPECT_EQ(cluster_->Bugs(), 0);
    std::string ends;
    for (const auto& [what, count] : load.ends()) {
      absl::StrAppend(&ends, " ", what, ":", count);
    }
    const auto wrong = load.wrong();
    EXPECT_TRUE(wrong.empty()) << wrong.size() << " such as " << wrong.front();
    std::printf("%-34s %s%s\n", cell.name().c_str(),
                wrong.empty() ? "right" : "WRONG", ends.c_str());
    std::fflush(stdout);
  }

  double HandoffFailures() const {
    double sum = 0;
    for (const char* worker :
         {"prefill-0", "prefill-1", "decode-0", "decode-1"}) {
      const auto metrics = cluster_->Scrape(worker);
      if (!metrics.ok()) continue;
      for (const auto& [series, value] : *metrics) {
        if (absl::StartsWith(series, "baton_handoff_failures_total")) {
          sum += value;
        }
      }
    }
    return sum;
  }

  void Inject(const Cell& cell, const std::string& victim) {
    if (cell.fault == "kill") {
      cluster_->Kill(victim);
      absl::SleepFor(absl::Milliseconds(200));
      ASSERT_OK(cluster_->Restart(victim));
    } else if (cell.fault == "stop") {
      cluster_->member(victim).process->Signal(SIGSTOP);
      absl::SleepFor(absl::Seconds(5));
      cluster_->member(victim).process->Signal(SIGCONT);
    } else {
      const bool at_sender = cell.victim == "prefill";
      const std::string fault = absl::StrCat(
          "transfer.", at_sender ? "" : "receiver_",
          cell.fault == "drop_link" ? "drop_link" : "corrupt_segment",
          "*1=fire");
      const char* delay =
          at_sender ? cell.state.prefill_delay : cell.state.decode_delay;
      const double before = HandoffFailures();
      ASSERT_OK(cluster_->Arm(victim, absl::StrCat(fault, ";", delay)));
      EXPECT_TRUE(WaitFor([&] { return HandoffFailures() > before; },
                          absl::Seconds(10)))
          << "the fault hit no hand-off";
    }
  }

  static std::vector<Cell> AllCells() {
    std::vector<Cell> cells;
    for (const char* fault : {"kill", "stop", "drop_link", "corrupt"}) {
      for (const char* victim : {"router", "prefill", "decode"}) {
        const bool on_link = fault[0] == 'd' || fault[0] == 'c';
        if (on_link && victim[0] == 'r') continue;
        for (const State& state : kStates)
          cells.push_back({fault, victim, state});
      }
    }
    return cells;
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<std::vector<int32_t>> golden_;
};

// One state per fault and victim, each state at least once: what CI has time
// for. EveryCell runs under the label slow.
TEST_F(FaultMatrix, OneStatePerFaultAndVictim) {
  const std::vector<Cell> cells = AllCells();
  for (size_t i = 0; i * 6 < cells.size(); ++i) {
    RunCell(cells[i * 6 + i % 6]);
    if (HasFatalFailure()) return;
  }
}

TEST_F(FaultMatrix, EveryCell) {
  for (const Cell& cell : AllCells()) {
    RunCell(cell);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace baton::integration
