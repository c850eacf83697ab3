// Prompts from admission to the return of their memory, with every way to end.
#include "prefill_worker/engine/engine.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/request/request.h"
#include "tests/prefill_worker/engine/engine_fixture.h"

namespace baton::prefill_worker {
namespace {

using baton::testing::StatusIs;
using handoff::SenderEventKind;
using request::ErrorReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EngineTest, TakesAPromptFromAdmissionToCommit) {
  Build();
  const auto prompt = Admit(1, 600);
  Attach(prompt, 1);
  EXPECT_THAT(sender_->calls(), ElementsAre("start 1"));
  RunSteps();
  EXPECT_THAT(prompt->log, ElementsAre("admitted", "started", "progress 512",
                                       "progress 600", "sealed"));
  EXPECT_THAT(sender_->calls(),
              ElementsAre("start 1", "rows 512", "rows 600", "seal"));
  EXPECT_EQ(sender_->logits().size(), 2048);
  ExpectHeld(3, 1);
  Deliver(SenderEventKind::kCommitted, 1);
  EXPECT_EQ(prompt->log.back(), "finished OK");
  ExpectHeld(3, 1);  // the sender may still read
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
  EXPECT_EQ(TokensProcessed(), 600);
}

TEST_F(EngineTest, ProcessesEachPromptTokenExactlyOnce) {
  for (const int32_t tokens : {1, 127, 128, 129, 255, 256, 257, 511, 513}) {
    Build();
    const auto prompt = Admit(1, tokens);
    RunSteps();
    EXPECT_EQ(TokensProcessed(), tokens);
    EXPECT_EQ(prompt->log.back(), absl::StrCat("progress ", tokens));
  }
}

TEST_F(EngineTest, SealsTheSameLogitsHoweverThePromptIsCut) {
  std::vector<float> whole;
  for (const int32_t chunk : {512, 1, 3, 127, 128}) {
    Build({.scheduler = {.chunk_tokens = chunk, .chunk_alignment = 1}});
    const auto prompt = Admit(1, 150);
    Attach(prompt, 1);
    RunSteps();
    ASSERT_EQ(sender_->logits().size(), 2048);
    // Of the ids that the steps ran, whatever the chunks.
    EXPECT_EQ(sender_->prompt_hash(), Request(1, 150).prompt_hash);
    if (whole.empty()) {
      whole = sender_->logits();
      EXPECT_TRUE(std::isfinite(whole[0]));
    } else {
      EXPECT_EQ(sender_->logits(), whole) << "chunks of " << chunk;
    }
  }
}

TEST_F(EngineTest, SealsTheSameLogitsBesideOtherPrompts) {
  Build();
  Attach(Admit(1, 200), 1);
  RunSteps();
  const std::vector<float> alone = sender_->logits();
  Build();
  Admit(2, 300);
  const auto prompt = Admit(1, 200);
  Admit(3, 40);
  Attach(prompt, 1);
  RunSteps();
  EXPECT_EQ(sender_->logits(), alone);
}

TEST_F(EngineTest, TheSenderCatchesUpWhenAttachedBetweenChunks) {
  Build();
  const auto prompt = Admit(1, 1200);
  engine_->Iterate();
  EXPECT_THAT(sender_->calls(), IsEmpty());
  Attach(prompt, 1);
  EXPECT_THAT(sender_->calls(), ElementsAre("start 1", "rows 512"));
  RunSteps();
  EXPECT_THAT(sender_->calls(), ElementsAre("start 1", "rows 512", "rows 1024",
                                            "rows 1200", "seal"));
}

TEST_F(EngineTest, TheSenderCatchesUpWhenAttachedAfterTheLastChunk) {
  Build();
  const auto prompt = Admit(1, 100);
  RunSteps();
  EXPECT_THAT(sender_->calls(), IsEmpty());
  clock_.Advance(absl::Seconds(9));
  Attach(prompt, 1);
  EXPECT_THAT(sender_->calls(), ElementsAre("start 1", "rows 100", "seal"));
  EXPECT_EQ(prompt->log.back(), "sealed");
  // Admission to last chunk: the wait for the ticket is not prefill time.
  EXPECT_EQ(prompt->prefill_us, 0);
}

TEST_F(EngineTest, TellsStartedOnceTheFirstChunkIsNear) {
  // 500 tokens a second at first: 100 tokens ahead are 200 ms.
  Build({.start_eta = absl::Milliseconds(200)});
  const auto first = Admit(1, 101);
  const auto second = Admit(2, 10);
  const auto third = Admit(3, 10);
  engine_->Iterate();
  EXPECT_EQ(first->log[1], "started");
  // All ran in this step, and each was told before its first progress.
  for (const auto& prompt : {first, second, third}) {
    ASSERT_GE(prompt->log.size(), 3);
    EXPECT_EQ(prompt->log[1], "started");
    EXPECT_THAT(prompt->log[2], HasSubstr("progress"));
  }
}

TEST_F(EngineTest, PassesTheRejectionOfTheReceiverOn) {
  Build();
  const auto prompt = Admit(1, 100);
  Attach(prompt, 1);
  RunSteps();
  Deliver(SenderEventKind::kFailed, 1, 1,
          request::MakeError(absl::StatusCode::kDataLoss, "checksum of l2.c4",
                             {.reason = ErrorReason::kHandoffRejected}));
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kDataLoss,
                                        HasSubstr("checksum of l2.c4")));
  EXPECT_EQ(prompt->log[prompt->log.size() - 2], "verdict 0");
  ExpectHeld(1, 1);
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
  EXPECT_THAT(
      metric_set_->Expose(),
      HasSubstr("baton_handoff_failures_total{reason=\"handoff_rejected\"} 1"));
}

TEST_F(EngineTest, EndsWhenTheSenderFailsBeforeTheSeal) {
  Build();
  const auto prompt = Admit(1, 1200);
  Attach(prompt, 1);
  engine_->Iterate();
  Deliver(SenderEventKind::kFailed, 1, 1,
          absl::UnavailableError("the link closed"));
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kUnavailable));
  RunSteps();  // nothing is computed for it any more
  EXPECT_EQ(engine_->load().backlog_tokens, 0);
  EXPECT_EQ(TokensProcessed(), 512);
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
}

TEST_F(EngineTest, EndsWhenTheTicketIsRefusedByTheSender) {
  Build();
  sender_->set_start_status(
      absl::FailedPreconditionError("another StateFormat"));
  const auto prompt = Admit(1, 100);
  Attach(prompt, 1);
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kFailedPrecondition));
  ExpectAllFree();  // nothing was sent, so nothing has to become quiet
}

TEST_F(EngineTest, EndsWhenTheTicketIsForAnotherAttemptOrHandoff) {
  Build();
  const auto stale = Admit(1, 100, /*attempt=*/2);
  Attach(stale, 1, /*attempt=*/1);
  EXPECT_THAT(*stale->status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("attempt 1")));
  const auto other = Admit(3, 100);
  Attach(other, 4);
  EXPECT_THAT(*other->status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(sender_->calls(), IsEmpty());
  ExpectAllFree();
}

TEST_F(EngineTest, EndsOnASecondTicket) {
  Build();
  const auto prompt = Admit(1, 100);
  Attach(prompt, 1);
  Attach(prompt, 1);
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(sender_->calls(), ElementsAre("start 1", "cancel"));
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
}

TEST_F(EngineTest, CancelInEveryStateReturnsTheMemory) {
  struct Case {
    const char* name;
    bool attached;
    int turns;  // chunks of 16; the prompt has 40 tokens
  };
  const std::vector<Case> cases = {
      {"waiting", false, 0},  {"waiting, attached", true, 0},
      {"running", false, 1},  {"running, attached", true, 1},
      {"computed", false, 3}, {"sealed", true, 3},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Build({.scheduler = {.chunk_tokens = 16, .chunk_alignment = 1}});
    const auto prompt = Admit(1, 40);
    const auto neighbour = Admit(2, 1);
    if (c.attached) Attach(prompt, 1);
    for (int i = 0; i < c.turns; ++i) engine_->Iterate();
    engine_->Cancel(prompt.get(), absl::CancelledError("by the client"));
    EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kCancelled));
    engine_->Cancel(prompt.get(), absl::CancelledError("again"));
    engine_->Attach(prompt.get(), TicketFor(1));
    if (c.attached) {
      EXPECT_EQ(sender_->calls().back(), "cancel");
      ExpectHeld(2, 2);  // until the sender is quiet
      Deliver(SenderEventKind::kQuiet, 1);
    }
    ExpectHeld(1, 1);
    RunSteps();
    EXPECT_EQ(neighbour->log.back(), "progress 1");
    engine_->Cancel(neighbour.get(), absl::CancelledError(""));
    ExpectAllFree();
  }
}

TEST_F(EngineTest, CountsTheStepsBetweenACancelAndTheReturnOfTheMemory) {
  Build({.scheduler = {.chunk_tokens = 16, .chunk_alignment = 1}});
  const auto prompt = Admit(1, 40);
  Admit(2, 64);
  Attach(prompt, 1);
  const int64_t at_arrival = engine_->load().steps;
  engine_->Iterate();
  // It arrived before a step ended, and the sender is quiet two steps later.
  engine_->Cancel(prompt.get(), absl::CancelledError(""), at_arrival);
  engine_->Iterate();
  engine_->Iterate();
  EXPECT_THAT(metric_set_->Expose(),
              HasSubstr("baton_cancel_release_steps_count 0"));
  Deliver(SenderEventKind::kQuiet, 1);
  const std::string text = metric_set_->Expose();
  EXPECT_THAT(text, HasSubstr("baton_cancel_release_steps_count 1"));
  EXPECT_THAT(text, HasSubstr("baton_cancel_release_steps_sum 3"));
}

TEST_F(EngineTest, ACommitThatCrossesACancelChangesNothing) {
  Build();
  const auto prompt = Admit(1, 100);
  Attach(prompt, 1);
  RunSteps();
  sender_->Push(SenderEventKind::kCommitted, Handoff(1), 1);
  engine_->Cancel(prompt.get(), absl::CancelledError(""));
  engine_->Iterate();
  ExpectHeld(1, 1);
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
  EXPECT_EQ(BugCount(), 0);
}

TEST_F(EngineTest, ACancelAfterTheCommitIsTooLateToMatter) {
  Build();
  const auto prompt = Admit(1, 100);
  Attach(prompt, 1);
  RunSteps();
  Deliver(SenderEventKind::kCommitted, 1);
  engine_->Cancel(prompt.get(), absl::CancelledError(""));
  EXPECT_OK(*prompt->status);
  EXPECT_EQ(sender_->calls().back(), "seal");  // no cancel
  Deliver(SenderEventKind::kQuiet, 1);
  ExpectAllFree();
}

TEST_F(EngineTest, TheNextAttemptWaitsUntilTheOlderIsQuiet) {
  Build();
  const auto older = Admit(1, 100, 1);
  Attach(older, 1, 1);
  RunSteps();
  const auto newer = Admit(1, 100, 2);
  EXPECT_THAT(*older->status, StatusIs(absl::StatusCode::kAborted));
  Attach(newer, 1, 2);
  RunSteps();
  EXPECT_EQ(sender_->calls().back(), "cancel");  // attempt 2 not started
  Deliver(SenderEventKind::kQuiet, 1, 1);
  const auto calls = sender_->calls();
  EXPECT_THAT(std::vector<std::string>(calls.end() - 3, calls.end()),
              ElementsAre("start 2", "rows 100", "seal"));
  Deliver(SenderEventKind::kCommitted, 1, 2);
  Deliver(SenderEventKind::kQuiet, 1, 2);
  EXPECT_OK(*newer->status);
  ExpectAllFree();
}

TEST_F(EngineTest, EndsAtTheDeadlineInAnyState) {
  for (const int turns : {0, 1, 3}) {
    Build({.scheduler = {.chunk_tokens = 16, .chunk_alignment = 1}});
    const auto prompt = Admit(1, 40);
    Attach(prompt, 1);
    for (int i = 0; i < turns; ++i) engine_->Iterate();
    clock_.Advance(absl::Minutes(1) - absl::Milliseconds(1));
    if (turns == 3) engine_->Iterate();
    EXPECT_FALSE(prompt->status.has_value());
    clock_.Advance(absl::Milliseconds(1));
    engine_->Iterate();
    ASSERT_TRUE(prompt->status.has_value());
    EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    Deliver(SenderEventKind::kQuiet, 1);
    ExpectAllFree();
  }
}

TEST_F(EngineTest, CapsTheLifeOfAPromptWithoutADeadline) {
  Build({.max_lifetime = absl::Minutes(3)});
  PromptRequest request = Request(1, 100);
  request.deadline = absl::InfiniteFuture();
  const auto prompt = Admit(std::move(request));
  Attach(prompt, 1);
  RunSteps();
  clock_.Advance(absl::Minutes(3));
  engine_->Iterate();
  ASSERT_TRUE(prompt->status.has_value());
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(EngineTest, AComputedPromptDoesNotWaitForItsTicketForEver) {
  Build({.attach_timeout = absl::Seconds(10)});
  const auto prompt = Admit(1, 100);
  RunSteps();
  clock_.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  engine_->Iterate();
  EXPECT_FALSE(prompt->status.has_value());
  clock_.Advance(absl::Milliseconds(1));
  engine_->Iterate();
  ASSERT_TRUE(prompt->status.has_value());
  EXPECT_THAT(*prompt->status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        HasSubstr("waited for Attach")));
  ExpectAllFree();
}

TEST_F(EngineTest, StoppingEndsEveryPrompt) {
  Build();
  const auto waiting = Admit(1, 2000);
  const auto sealed = Admit(2, 100);
  Attach(sealed, 2);
  engine_->Iterate();
  engine_->EndAll();
  EXPECT_THAT(*waiting->status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(*sealed->status, StatusIs(absl::StatusCode::kUnavailable));
  Deliver(SenderEventKind::kQuiet, 2);
  ExpectAllFree();
}

TEST_F(EngineTest, AShortPromptOvertakesALongOne) {
  Build();
  const auto lengthy = Admit(1, 3000);
  engine_->Iterate();
  const auto brief = Admit(2, 30);
  Attach(brief, 2);
  engine_->Iterate();
  EXPECT_EQ(brief->log.back(), "sealed");
  EXPECT_FALSE(lengthy->status.has_value());
  EXPECT_EQ(lengthy->log.back(), "progress 768");
}

TEST_F(EngineTest, TheAuditReportsNothingWhenAllIsWell) {
  Build();
  Admit(1, 300);
  engine_->Iterate();
  engine_->Audit();
  EXPECT_THAT(metric_set_->Expose(), HasSubstr("baton_blocks_orphaned 0"));
  EXPECT_EQ(BugCount(), 0);
}

TEST_F(EngineTest, ExportsWhatItHolds) {
  Build();
  Admit(1, 1200);
  Admit(2, 100);
  Admit(3, 100);
  engine_->Iterate();
  engine_->SetGauges();
  const std::string text = metric_set_->Expose();
  for (const char* line :
       {"baton_blocks{state=\"active\"} 7", "baton_blocks{state=\"free\"} 9",
        "baton_sequences{state=\"running\"} 1",
        "baton_sequences{state=\"computed\"} 2",
        "baton_prefill_backlog_tokens 944"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Prompts in random states, cancelled, failed and committed at random: whatever
// happens, each call ends once and every block comes back.
TEST_F(EngineTest, TheLedgerIsExactAfterRandomEnds) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    // Chunks of 4: most prompts take several turns.
    Build(
        {.scheduler = {
             .max_step_tokens = 16, .chunk_tokens = 4, .chunk_alignment = 1}});
    SeededRandom random(seed);
    const auto pick = [&](uint64_t n) { return random.Uint64() % n; };
    struct Live {
      uint64_t n = 0;
      std::shared_ptr<RecordingObserver> observer;
      bool attached = false;
    };
    std::vector<Live> live;
    uint64_t next = 1;
    for (int turn = 0; turn < 120; ++turn) {
      if (pick(2) == 0) {
        Live prompt{.n = next++};
        prompt.observer = Admit(prompt.n, static_cast<int32_t>(1 + pick(20)));
        if (!prompt.observer->status.has_value()) live.push_back(prompt);
      }
      for (Live& prompt : live) {
        const bool sealed = prompt.observer->log.back() == "sealed";
        switch (pick(8)) {
          case 0:
            engine_->Cancel(prompt.observer.get(), absl::CancelledError(""));
            break;
          case 1:
            if (prompt.attached) {
              sender_->Push(SenderEventKind::kFailed, Handoff(prompt.n), 1,
                            absl::UnavailableError(""));
            }
            break;
          case 2:
          case 3:
            if (sealed) {
              sender_->Push(SenderEventKind::kCommitted, Handoff(prompt.n), 1);
            }
            break;
          default:
            if (!prompt.attached) {
              prompt.attached = true;
              Attach(prompt.observer, prompt.n);
            }
        }
      }
      engine_->Iterate();
      // Whoever ended becomes quiet.
      std::erase_if(live, [&](const Live& prompt) {
        if (!prompt.observer->status.has_value()) return false;
        if (prompt.attached) {
          sender_->Push(SenderEventKind::kQuiet, Handoff(prompt.n), 1);
        }
        return true;
      });
      EXPECT_OK(pool_->Audit());
    }
    for (const Live& prompt : live) {
      engine_->Cancel(prompt.observer.get(), absl::CancelledError(""));
      if (prompt.attached) {
        sender_->Push(SenderEventKind::kQuiet, Handoff(prompt.n), 1);
      }
    }
    RunSteps();
    ExpectAllFree();
    EXPECT_EQ(BugCount(), 0);
  }
}

}  // namespace
}  // namespace baton::prefill_worker
