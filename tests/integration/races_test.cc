// Races replayed with sync points at the level of whole workers: real engines,
// real state, real links; the test decides who comes first. The same races
// between a bare sender and receiver are in tests/common/handoff/race_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/handoff/sender.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/races_call.h"

namespace baton::integration {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;

constexpr int kRepetitions = 100;
constexpr int32_t kOutput = 8;
// Around a C4 window, a C128 window, and the smallest.
constexpr std::array<int32_t, 8> kPrompts = {1, 3, 4, 5, 31, 64, 127, 129};

class Races : public ::testing::Test {
 protected:
  struct Golden {
    std::vector<std::vector<int32_t>> ids;  // per sample
    std::vector<std::string> texts;
  };

  // What a state left over by one repetition would spoil shows at once: free
  // pages hold NaN.
  void StartWorkers(ColocatedOptions options) {
    options.poison_free_pages = true;
    bugs_before_ = BugCount();
    auto started = Colocated::Start(options);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    workers_ = *std::move(started);
  }
  void TearDown() override {
    FaultRegistry::Global().DisarmAll();
    if (workers_ == nullptr) return;
    clock_.Advance(absl::Seconds(1));  // the next sweep is due
    EXPECT_OK(workers_->WaitUntilIdle(absl::Seconds(10),
                                      Colocated::Calls::kForgotten));
    EXPECT_OK(workers_->StopAndAudit());
    EXPECT_EQ(BugCount(), bugs_before_);
  }

  // Request number `r`: eight prompts in turn, one or two samples.
  DirectCall::Options RequestOf(int r) {
    DirectCall::Options options;
    const int kind = r % static_cast<int>(kPrompts.size());
    for (int32_t i = 0; i < kPrompts[static_cast<size_t>(kind)]; ++i) {
      options.prompt.push_back(300 + (i * 7 + kind * 131) % 1500);
    }
    options.sampling.temperature = 1.0F;
    options.sampling.seed = static_cast<uint64_t>(kind);
    options.sampling.max_tokens = kOutput;
    options.sampling.ignore_eos = true;
    options.sampling.n = 1 + kind % 2;
    return options;
  }
  DirectCall NewCall(int r) {
    return DirectCall(*workers_, RequestOf(r), &random_);
  }
  // The undisturbed answers; before anything is armed.
  void RunGolden() {
    for (int r = 0; r < static_cast<int>(kPrompts.size()); ++r) {
      DirectCall call = NewCall(r);
      ASSERT_OK(call.Begin().status());
      ASSERT_OK(call.WaitForEnd());
      Golden golden;
      for (int32_t s = 0; s < RequestOf(r).sampling.n; ++s) {
        golden.ids.push_back(call.ids(s));
        golden.texts.push_back(call.text(s));
        ASSERT_EQ(golden.ids.back().size(), static_cast<size_t>(kOutput));
      }
      golden_.push_back(std::move(golden));
    }
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
  void ExpectGolden(const DirectCall& call, int r) const {
    const Golden& golden = golden_[static_cast<size_t>(r) % golden_.size()];
    for (size_t s = 0; s < golden.ids.size(); ++s) {
      EXPECT_EQ(call.ids(static_cast<int32_t>(s)), golden.ids[s]);
      EXPECT_EQ(call.text(static_cast<int32_t>(s)), golden.texts[s]);
    }
  }
  static bool Finished(const PromptLog::Seen& seen) {
    return seen.finished.has_value();
  }

  testing::FakeClock clock_;  // of the parts that a test names
  std::unique_ptr<Colocated> workers_;
  SeededRandom random_{11};
  std::vector<Golden> golden_;
  int64_t bugs_before_ = 0;
};

// --- Cancel against commit ---------------------------------------------------

TEST_F(Races, CancelBeforeTheCommitEndsWithoutOutput) {
  StartWorkers({});
  RunGolden();
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    // All has arrived and is pinned by the check, which the commit needs.
    HoldFirst check("handoff.before_verify");
    DirectCall call = NewCall(r);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    ASSERT_TRUE(check.WaitUntilReached());
    call.Cancel();
    EXPECT_THAT(call.WaitForEnd(), StatusIs(absl::StatusCode::kCancelled));
    // The memory stays while the check reads it (hazards P7).
    const kv::BlockCounts held = workers_->decode().stats().blocks;
    EXPECT_LT(held.free, held.total);
    if (r % 2 == 0) call.CancelPrompt(0, prompt);
    check.Release();
    ASSERT_TRUE(prompt->WaitFor(Finished));
    EXPECT_FALSE(prompt->seen().finished->ok());
    EXPECT_FALSE(prompt->seen().committed.value_or(false));
    EXPECT_FALSE(call.committed());
    EXPECT_TRUE(call.ids().empty());
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
}

class CancelAfter : public Races,
                    public ::testing::WithParamInterface<const char*> {};

TEST_P(CancelAfter, TheCommitHasBegunEndsBothSidesAndKeepsNothing) {
  StartWorkers({});
  RunGolden();
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    HoldFirst step_loop(GetParam());
    DirectCall call = NewCall(r);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    ASSERT_TRUE(step_loop.WaitUntilReached());
    call.Cancel();  // handled at the next step boundary, after the commit
    if (r % 2 == 0) call.CancelPrompt(0, prompt);
    step_loop.Release();
    EXPECT_THAT(call.WaitForEnd(), StatusIs(absl::StatusCode::kCancelled));
    ASSERT_TRUE(prompt->WaitFor(Finished));
    if (r % 2 != 0) {
      EXPECT_OK(*prompt->seen().finished) << "the hand-off itself went well";
    }
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
  DirectCall after = NewCall(0);
  ASSERT_OK(after.Begin().status());
  ASSERT_OK(after.WaitForEnd());
  ExpectGolden(after, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Points, CancelAfter,
    ::testing::Values("decode.before_commit", "handoff.before_commit",
                      "handoff.before_verdict", "decode.after_commit"),
    [](const auto& test) {
      return std::string(test.param)
          .replace(std::string(test.param).find('.'), 1, "_");
    });

TEST_F(Races, CancelAtNoParticularMomentIsEitherTheAnswerOrCancelled) {
  StartWorkers({});
  RunGolden();
  int answered = 0;
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    DirectCall call = NewCall(r);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    // From "not begun" over "sealed" to "nearly done".
    const auto output = static_cast<size_t>(r % (kOutput + 2));
    if (output > 0) {
      ASSERT_TRUE(prompt->WaitFor([](const PromptLog::Seen& seen) {
        return seen.sealed || Finished(seen);
      }));
    }
    if (output > 1) {
      ASSERT_TRUE(call.WaitFor([&](const decode_worker::Collected& seen) {
        return seen.samples[0].ids.size() >= output - 1;
      }));
    }
    call.Cancel();
    call.CancelPrompt(0, prompt);
    const absl::Status end = call.WaitForEnd();
    if (end.ok()) {
      ++answered;
      ExpectGolden(call, r);
    } else {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kCancelled));
    }
    ASSERT_TRUE(prompt->WaitFor(Finished));
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
  EXPECT_LT(answered, kRepetitions) << "nothing was cancelled";
}

// --- Re-ticket against a first prefill that wakes ----------------------------

enum class Wakes { kBeforeReticket, kBeforeAttach, kAfterAttach, kAfterEnd };

struct WakingCase {
  const char* point;
  std::vector<Wakes> wakes;
};

class WakingPrefill : public Races,
                      public ::testing::WithParamInterface<WakingCase> {};

TEST_P(WakingPrefill, NeverMixesWithTheSecond) {
  StartWorkers({.prefill = 2});
  RunGolden();
  const std::vector<Wakes>& wakes = GetParam().wakes;
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    const Wakes when = wakes[static_cast<size_t>(r / 2) % wakes.size()];
    HoldFirst hold(GetParam().point);
    DirectCall call = NewCall(r);
    const auto first = call.Admit(0, 1);
    ASSERT_OK(call.Reserve());
    call.Attach(0, first);
    ASSERT_TRUE(hold.WaitUntilReached());
    // Half of the first workers never hear that they were given up.
    if (r % 2 == 0) call.CancelPrompt(0, first);
    if (when == Wakes::kBeforeReticket) hold.Release();
    const absl::Status reticket = call.Reticket(2);
    if (when == Wakes::kBeforeReticket && !reticket.ok()) {
      // It woke, sealed and was committed before the router had given it up.
      EXPECT_THAT(reticket, StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_OK(call.WaitForEnd());
      ExpectGolden(call, r);
      ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
      continue;
    }
    ASSERT_OK(reticket);
    const auto second = call.Admit(1, 2);
    if (when == Wakes::kBeforeAttach) hold.Release();
    call.Attach(1, second);
    if (when == Wakes::kAfterAttach) hold.Release();
    EXPECT_OK(call.WaitForEnd());
    ExpectGolden(call, r);
    hold.Release();
    ASSERT_TRUE(second->WaitFor(Finished));
    EXPECT_OK(*second->seen().finished);
    ASSERT_TRUE(first->WaitFor(Finished));
    EXPECT_FALSE(first->seen().finished->ok()) << "both were committed";
    EXPECT_FALSE(first->seen().committed.value_or(false));
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, WakingPrefill,
    ::testing::Values(WakingCase{"prefill.before_step",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach, Wakes::kAfterEnd}},
                      WakingCase{"prefill.before_seal",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach, Wakes::kAfterEnd}},
                      WakingCase{"handoff.before_gather",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach, Wakes::kAfterEnd}},
                      WakingCase{"handoff.before_send",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach, Wakes::kAfterEnd}},
                      WakingCase{"handoff.before_seal",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach, Wakes::kAfterEnd}},
                      // The second may not begin before this scatter is over.
                      WakingCase{"handoff.before_scatter",
                                 {Wakes::kBeforeReticket, Wakes::kBeforeAttach,
                                  Wakes::kAfterAttach}}),
    [](const auto& test) {
      return std::string(test.param.point)
          .replace(std::string(test.param.point).find('.'), 1, "_");
    });

TEST_F(Races, ReticketThatComesAfterTheCommitChangesNothing) {
  StartWorkers({});
  RunGolden();
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    HoldFirst commit(r % 2 == 0 ? "decode.before_commit"
                                : "handoff.before_verdict");
    DirectCall call = NewCall(r);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    ASSERT_TRUE(commit.WaitUntilReached());
    call.PostReticket(2);
    commit.Release();
    EXPECT_THAT(call.WaitForReticket(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_OK(call.WaitForEnd());
    ExpectGolden(call, r);
    ASSERT_TRUE(prompt->WaitFor(Finished));
    EXPECT_OK(*prompt->seen().finished);
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
}

// --- Lost ack ----------------------------------------------------------------

TEST_F(Races, LostVerdictNeitherStopsTheStreamNorKeepsThePromptsBlocks) {
  StartWorkers({.sender_clock = &clock_});
  RunGolden();
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    FaultRegistry::Global().Arm("handoff.drop_verdict",
                                [](absl::string_view) { return true; });
    DirectCall call = NewCall(r);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    EXPECT_OK(call.WaitForEnd());
    ExpectGolden(call, r);
    EXPECT_FALSE(prompt->seen().finished.has_value()) << "nothing was lost";
    // Query brings what the dropped message would have said.
    clock_.Advance(handoff::SenderOptions().verdict_timeout +
                   absl::Milliseconds(1));
    ASSERT_TRUE(prompt->WaitFor(Finished));
    EXPECT_OK(*prompt->seen().finished);
    EXPECT_TRUE(prompt->seen().committed.value_or(false));
    EXPECT_EQ(FaultRegistry::Global().hits("handoff.drop_verdict"), 1);
    FaultRegistry::Global().Disarm("handoff.drop_verdict");
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
}

// --- Lease expiry ------------------------------------------------------------

class LeaseExpiry : public Races,
                    public ::testing::WithParamInterface<const char*> {};

TEST_P(LeaseExpiry, FreesDecodeTellsTheClientAndDropsLateRows) {
  constexpr absl::Duration kLease = absl::Seconds(10);
  StartWorkers({.lease = kLease, .decode_clock = &clock_});
  RunGolden();
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    HoldFirst hold(GetParam());
    DirectCall::Options options = RequestOf(r);
    options.deadline = clock_.Now() + absl::Minutes(9);
    DirectCall call(*workers_, options, &random_);
    ASSERT_OK_AND_ASSIGN(const auto prompt, call.Begin());
    ASSERT_TRUE(hold.WaitUntilReached());
    // What was on its way before the hold may extend the lease once more.
    const auto ended = [](const decode_worker::Collected& seen) {
      return seen.end.has_value();
    };
    for (int i = 0; i < 20; ++i) {
      clock_.Advance(kLease + absl::Milliseconds(1));
      if (call.WaitFor(ended, absl::Milliseconds(30))) break;
    }
    const absl::Status end = call.WaitForEnd();
    const int64_t before = workers_->received_bytes();
    // Not a deadline of the client's: its prefill stood still.
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kAborted)) << end;
    EXPECT_NE(request::InfoOf(end).reason, ErrorReason::kDeadline);
    EXPECT_NE(request::InfoOf(end).reason, ErrorReason::kUnspecified);
    EXPECT_TRUE(call.ids().empty());
    // All of decode's memory is back while the prefill still stands.
    const absl::Time limit = Clock::Real()->Now() + absl::Seconds(10);
    while (workers_->decode().stats().blocks.free !=
               workers_->decode().stats().blocks.total &&
           Clock::Real()->Now() < limit) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(workers_->decode().stats().blocks.free,
              workers_->decode().stats().blocks.total);
    hold.Release();
    ASSERT_TRUE(prompt->WaitFor(Finished));
    EXPECT_FALSE(prompt->seen().finished->ok());
    EXPECT_FALSE(prompt->seen().committed.value_or(false));
    EXPECT_EQ(workers_->received_bytes(), before) << "late rows were kept";
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
  DirectCall after = NewCall(3);
  ASSERT_OK(after.Begin().status());
  EXPECT_OK(after.WaitForEnd());
  ExpectGolden(after, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Points, LeaseExpiry,
    ::testing::Values("prefill.before_step", "prefill.before_seal",
                      "handoff.before_gather", "handoff.before_send",
                      "handoff.before_seal"),
    [](const auto& test) {
      return std::string(test.param)
          .replace(std::string(test.param).find('.'), 1, "_");
    });

// --- Two routers on one worker -----------------------------------------------

TEST_F(Races, TwoRoutersOnOneWorkerBothGetServiceOrARefusal) {
  // Room for one request; one router waits for it, the other refuses at once.
  StartWorkers({.routers = 2,
                .blocks = 3,
                .slots = 4,
                .queue_timeouts = {absl::ZeroDuration(), absl::Seconds(20)}});
  v1::GenerateRequest request;
  for (int32_t i = 0; i < 32; ++i) {
    request.mutable_token_ids()->add_ids(300 + i * 7);
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(6);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_n(2);  // two of three blocks
  request.set_return_token_ids(true);

  // In every tenth repetition the impatient router has the worker to itself.
  constexpr int kAlone = 10;
  std::array<std::atomic<int>, 2> served{};
  std::array<std::atomic<int>, 2> refused{};
  for (int r = 0; r < kRepetitions; ++r) {
    SCOPED_TRACE(r);
    std::vector<Thread> clients;
    for (int32_t c = 0; c < 4; ++c) {
      const int32_t router = (c + r) % 2;  // who comes first, in turn
      if (r % kAlone == 0 && router == 1) continue;
      clients.emplace_back("client", [&, router] {
        int32_t tokens = 0;
        bool started = false;
        const absl::Status status = workers_->client(router).Generate(
            request, absl::Seconds(40), [&](const v1::GenerateResponse& e) {
              started |= e.has_started();
              tokens += e.delta().token_ids_size();
              return true;
            });
        workers_->ReportSoon();
        if (status.ok()) {
          EXPECT_EQ(tokens, 12);
          ++served[static_cast<size_t>(router)];
        } else {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
          EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kOverloaded);
          EXPECT_GT(request::InfoOf(status).retry_delay_ms, 0);
          EXPECT_FALSE(started) << "accepted, then refused";
          ++refused[static_cast<size_t>(router)];
        }
      });
    }
    clients.clear();
    ASSERT_OK(workers_->WaitUntilIdle(absl::Seconds(10)));
  }
  std::printf("impatient router: %d served, %d refused; patient: %d, %d\n",
              served[0].load(), refused[0].load(), served[1].load(),
              refused[1].load());
  EXPECT_GE(served[0].load(), kRepetitions / kAlone);
  EXPECT_GT(refused[0].load(), 0) << "they never met";
  // Room comes within milliseconds: who waits for 20 s is served.
  EXPECT_EQ(served[1].load(), 2 * (kRepetitions - kRepetitions / kAlone));
}

}  // namespace
}  // namespace baton::integration
