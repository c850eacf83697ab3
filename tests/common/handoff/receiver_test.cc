// The receiver's contract towards the step loop, without a transport.
#include "common/handoff/receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {
namespace {

using baton::testing::FakeClock;
using baton::testing::StatusIs;
using ::testing::HasSubstr;

class QuietLink final : public transfer::ReceiverLink {
 public:
  absl::Status Send(const transfer::Posted&) override { return {}; }
  absl::Status Send(const transfer::Done&) override { return {}; }
  absl::Status Send(const transfer::Verdict& verdict) override {
    verdicts.push_back(verdict);
    return {};
  }
  void Close(const absl::Status& status) override { closed = status; }
  std::vector<transfer::Verdict> verdicts;
  absl::Status closed;
};

class ReceiverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ReceiverOptions options;
    options.identity = {.worker = "decode-0",
                        .incarnation = 5,
                        .state_format_hash = TestFormat().Hash()};
    options.endpoints = {"inproc:decode-0"};
    options.store = store_.get();
    options.vocab_size = kTestVocab;
    options.clock = &clock_;
    options.max_links = 2;
    ASSERT_OK_AND_ASSIGN(receiver_, CreateReceiver(options));
  }
  void TearDown() override {
    for (const auto& handler : handlers_) {
      handler->OnLinkClosed(absl::UnavailableError("test over"));
    }
  }

  absl::StatusOr<Ticket> Reserve(uint64_t id, absl::Duration within) {
    return receiver_->Reserve({.handoff = TestHandoff(id),
                               .prompt_tokens = 40,
                               .prompt_hash = TestPromptHash(1),
                               .sequence = store_.Sequence(40, 0),
                               .deadline = clock_.Now() + within});
  }
  transfer::LinkHello Hello(const std::string& worker,
                            Incarnation incarnation = 1) {
    return {.sender = {.worker = worker,
                       .incarnation = incarnation,
                       .state_format_hash = TestFormat().Hash()},
            .receiver_incarnation = 5};
  }
  absl::Status Accept(const transfer::LinkHello& hello) {
    link_ = std::make_shared<QuietLink>();
    auto accepted = receiver_->acceptor()->Accept(hello, ++epoch_, link_);
    if (accepted.ok()) handlers_.push_back(*accepted);
    return accepted.status();
  }
  std::vector<ReceiverEventKind> Kinds() {
    std::vector<ReceiverEventKind> kinds;
    for (const auto& event : receiver_->TakeEvents()) {
      kinds.push_back(event.kind);
    }
    return kinds;
  }

  FakeClock clock_;
  TestStore store_;
  std::unique_ptr<Receiver> receiver_;
  std::shared_ptr<QuietLink> link_;
  std::vector<std::shared_ptr<transfer::LinkReceiverHandler>> handlers_;
  LinkEpoch epoch_ = 0;
};

TEST_F(ReceiverTest, TicketSaysWhatTheSenderNeeds) {
  ASSERT_OK_AND_ASSIGN(const Ticket ticket, Reserve(1, absl::Minutes(1)));
  EXPECT_EQ(ticket.handoff, TestHandoff(1));
  EXPECT_EQ(ticket.attempt, 1);
  EXPECT_EQ(ticket.receiver, "decode-0");
  EXPECT_EQ(ticket.receiver_incarnation, 5U);
  EXPECT_THAT(ticket.endpoints, ::testing::ElementsAre("inproc:decode-0"));
  EXPECT_EQ(ticket.state_format_hash, TestFormat().Hash());
  EXPECT_EQ(ticket.lease, absl::Seconds(10));
  ASSERT_OK_AND_ASSIGN(const Ticket shorter, Reserve(2, absl::Seconds(3)));
  EXPECT_EQ(shorter.lease, absl::Seconds(3));
  EXPECT_THAT(Reserve(3, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReceiverTest, IdIsRefusedWhileLiveAndWhileATombstone) {
  ASSERT_OK(Reserve(1, absl::Minutes(1)));
  EXPECT_THAT(Reserve(1, absl::Minutes(1)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  receiver_->Abort(TestHandoff(1), "test");
  receiver_->Abort(TestHandoff(1), "again, which changes nothing");
  EXPECT_THAT(Kinds(), ::testing::ElementsAre(ReceiverEventKind::kQuiet));
  EXPECT_THAT(Reserve(1, absl::Minutes(1)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(receiver_->stats().tombstones, 1);
  clock_.Advance(absl::Minutes(2));
  EXPECT_OK(Reserve(1, absl::Minutes(1)));
}

TEST_F(ReceiverTest, ReticketTakesTheNextAttemptOnly) {
  EXPECT_THAT(receiver_->Reticket(TestHandoff(1), 2),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(Reserve(1, absl::Minutes(1)));
  for (const Attempt attempt : {0, 1}) {
    EXPECT_THAT(receiver_->Reticket(TestHandoff(1), attempt),
                StatusIs(absl::StatusCode::kAborted));
  }
  EXPECT_THAT(receiver_->Reticket(TestHandoff(1), 3),
              StatusIs(absl::StatusCode::kInvalidArgument));
  clock_.Advance(absl::Seconds(9));
  ASSERT_OK_AND_ASSIGN(const Ticket ticket,
                       receiver_->Reticket(TestHandoff(1), 2));
  EXPECT_EQ(ticket.attempt, 2);
  EXPECT_EQ(ticket.lease, absl::Seconds(10));  // a lease of its own
}

TEST_F(ReceiverTest, LeaseIsRenewedByGrowingProgressWithinTheHardMaximum) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  ASSERT_OK(Reserve(1, absl::Hours(1)));
  const auto progress = [this](int64_t processed) {
    handlers_[0]->OnProgress({TestHandoff(1), 1, processed});
  };
  // 10 minutes at most, however much progress there is.
  for (int64_t second = 0; second < 600; second += 5) {
    progress(second + 1);
    EXPECT_THAT(Kinds(), ::testing::IsEmpty()) << second;
    clock_.Advance(absl::Seconds(5));
  }
  EXPECT_THAT(Kinds(), ::testing::ElementsAre(ReceiverEventKind::kExpired,
                                              ReceiverEventKind::kQuiet));
}

TEST_F(ReceiverTest, RepeatedProgressDoesNotRenewTheLease) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  ASSERT_OK(Reserve(1, absl::Hours(1)));
  for (int second = 0; second < 10; ++second) {
    handlers_[0]->OnProgress({TestHandoff(1), 1, 7});
    EXPECT_THAT(Kinds(), ::testing::IsEmpty()) << second;
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(Kinds(), ::testing::ElementsAre(ReceiverEventKind::kExpired,
                                              ReceiverEventKind::kQuiet));
}

TEST_F(ReceiverTest, LeaseNeverOutlivesTheDeadline) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  ASSERT_OK(Reserve(1, absl::Seconds(12)));
  clock_.Advance(absl::Seconds(8));
  handlers_[0]->OnProgress({TestHandoff(1), 1, 7});
  clock_.Advance(absl::Seconds(4));
  const auto events = receiver_->TakeEvents();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, ReceiverEventKind::kExpired);
  EXPECT_EQ(request::InfoOf(events[0].status).reason,
            request::ErrorReason::kDeadline);
}

TEST_F(ReceiverTest, HelloOfAStrangerIsRefused) {
  transfer::LinkHello hello = Hello("prefill-0");
  hello.receiver_incarnation = 4;
  EXPECT_THAT(Accept(hello), StatusIs(absl::StatusCode::kAborted));
  hello = Hello("prefill-0");
  hello.sender.model_digest[0] = 1;
  EXPECT_THAT(Accept(hello), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("model")));
  hello = Hello("prefill-0");
  hello.sender.state_format_hash[0] ^= 1;
  EXPECT_THAT(Accept(hello), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("StateFormat")));
  EXPECT_THAT(Accept(Hello("")), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Accept(Hello("prefill-0", 0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ReceiverTest, LinksAreBoundedAndOnePerWorker) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  const auto first = link_;
  ASSERT_OK(Accept(Hello("prefill-1")));
  EXPECT_THAT(Accept(Hello("prefill-2")),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // A restarted worker takes the place of its former self.
  EXPECT_OK(Accept(Hello("prefill-0", 2)));
  EXPECT_THAT(first->closed, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(receiver_->stats().links_up, 2);
}

TEST_F(ReceiverTest, QueryIsAnsweredFromTombstonesAndUnknownOtherwise) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  ASSERT_OK(Reserve(1, absl::Minutes(1)));
  receiver_->Abort(TestHandoff(1), "client went away");
  const auto ask = [this](uint64_t id, Attempt attempt) {
    link_->verdicts.clear();
    handlers_[0]->OnQuery({TestHandoff(id), attempt});
    return link_->verdicts.at(0);
  };
  EXPECT_EQ(ask(1, 1).kind, transfer::VerdictKind::kRejected);
  EXPECT_EQ(ask(1, 1).message, "client went away");
  EXPECT_EQ(ask(1, 2).kind, transfer::VerdictKind::kUnknown);
  EXPECT_EQ(ask(2, 1).kind, transfer::VerdictKind::kUnknown);
  // Reserved, and nothing sealed: nothing to wait for.
  ASSERT_OK(Reserve(3, absl::Minutes(1)));
  EXPECT_EQ(ask(3, 1).kind, transfer::VerdictKind::kUnknown);
  clock_.Advance(absl::Minutes(2));
  receiver_->TakeEvents();
  EXPECT_EQ(ask(1, 1).kind, transfer::VerdictKind::kUnknown);
}

TEST_F(ReceiverTest, OfferOutOfSequenceOrTooLargeEndsTheLink) {
  for (const transfer::Offer& offer :
       {transfer::Offer{.segment_seq = 2, .attempt = 1, .payload_bytes = 16},
        transfer::Offer{.segment_seq = 1, .attempt = 1, .payload_bytes = 0},
        transfer::Offer{.segment_seq = 1,
        .attempt = 1,
        .payload_bytes = (int64_t{8} << 20) + 1}}) {
    ASSERT_OK(Accept(Hello("prefill-0")));
    handlers_.back()->OnOffer(offer);
    EXPECT_THAT(link_->closed, StatusIs(absl::StatusCode::kDataLoss));
  }
}

// Found by fuzz_link: the shape of such an offer was never checked.
TEST_F(ReceiverTest, SegmentOfferedBeforeTheReservationIsDropped) {
  ASSERT_OK(Accept(Hello("prefill-0")));
  const HandoffId handoff = TestHandoff(1);
  handlers_[0]->OnOffer({.segment_seq = 1,
                         .handoff = handoff,
                         .attempt = 1,
                         .payload_bytes = 17});
  ASSERT_OK(Reserve(1, absl::Minutes(1)));
  handlers_[0]->OnProgress({handoff, 1, 7});  // RECEIVING
  const std::vector<std::byte> payload(17);
  handlers_[0]->OnSegment({.link_epoch = epoch_,
                           .segment_seq = 1,
                           .handoff = handoff,
                           .attempt = 1,
                           .payload_bytes = 17},
                          payload);
  EXPECT_EQ(receiver_->stats().segments_dropped, 1);
  EXPECT_OK(link_->closed);
  EXPECT_THAT(Kinds(), ::testing::IsEmpty());
}

TEST_F(ReceiverTest, OptionsAreChecked) {
  ReceiverOptions options;
  EXPECT_THAT(CreateReceiver(options),
              StatusIs(absl::StatusCode::kInvalidArgument));
  options.store = store_.get();
  options.identity = {.worker = "d", .incarnation = 1};
  options.endpoints = {"e"};
  options.vocab_size = 1;
  EXPECT_THAT(
      CreateReceiver(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("StateFormat")));
}

}  // namespace
}  // namespace baton::handoff
