#include "common/transfer/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "common/testing/sync_point.h"
#include "common/transfer/late_acceptor.h"
#include "common/transfer/scheme_dialer.h"

namespace baton::transfer {
namespace {

using baton::testing::FakeClock;
using baton::testing::StatusIs;
using ::testing::ElementsAre;

// Notes what arrives, and waits for it.
class Journal {
 public:
  void Add(std::string line) {
    MutexLock lock(&mu_);
    lines_.push_back(std::move(line));
    changed_.SignalAll();
  }
  std::vector<std::string> Await(size_t n) {
    MutexLock lock(&mu_);
    for (int i = 0; i < 2000 && lines_.size() < n; ++i) {
      changed_.WaitFor(&mu_, absl::Milliseconds(10));
    }
    return lines_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ BATON_GUARDED_BY(mu_);
};

class ReceiverSide final : public LinkReceiverHandler, public LinkAcceptor {
 public:
  absl::StatusOr<std::shared_ptr<LinkReceiverHandler>> Accept(
      const LinkHello& hello, LinkEpoch,
      std::shared_ptr<ReceiverLink> l) override {
    if (hello.receiver_incarnation != 5) return absl::AbortedError("stale");
    link = std::move(l);
    // The test owns this.
    return std::shared_ptr<LinkReceiverHandler>(this, [](auto*) {});
  }
  void OnOffer(const Offer& m) override {
    journal.Add(absl::StrCat("offer ", m.segment_seq));
  }
  void OnSeal(Seal) override { journal.Add("seal"); }
  void OnAbort(const LinkAbort& m) override {
    journal.Add("abort " + m.reason);
  }
  void OnQuery(const Query&) override { journal.Add("query"); }
  void OnProgress(const LinkProgress& m) override {
    journal.Add(absl::StrCat("progress ", m.processed_tokens));
  }
  void OnSegment(const SegmentHeader& header,
                 absl::Span<const std::byte> payload) override {
    BATON_FAULT_POINT("test.on_segment");
    segments.Add(absl::StrCat(header.segment_seq, ":", payload.size()));
  }
  void OnLinkClosed(const absl::Status& status) override {
    journal.Add(absl::StrCat("closed ", status.message()));
  }

  std::shared_ptr<ReceiverLink> link;
  Journal journal;
  Journal segments;
};

class SenderSide final : public LinkSenderHandler {
 public:
  void OnPosted(const Posted& m) override {
    journal.Add(absl::StrCat("posted ", m.segment_seq));
  }
  void OnDone(const Done& m) override {
    journal.Add(absl::StrCat("done ", m.segment_seq));
  }
  void OnVerdict(const Verdict&) override { journal.Add("verdict"); }
  void OnLinkClosed(const absl::Status& status) override {
    journal.Add(absl::StrCat("closed ", status.message()));
  }
  Journal journal;
};

class InProcessTest : public ::testing::Test {
 protected:
  void Listen() {
    ASSERT_OK_AND_ASSIGN(endpoint_, network_.Listen("decode", &receiver_));
    EXPECT_EQ(endpoint_, "inproc:decode");
  }
  void Dial() {
    ASSERT_OK_AND_ASSIGN(
        link_, network_.Dial(endpoint_, {.receiver_incarnation = 5}, sender_,
                             clock_.Now() + absl::Seconds(1)));
  }

  FakeClock clock_;
  ReceiverSide receiver_;
  InProcessNetwork network_{&clock_};
  std::shared_ptr<SenderSide> sender_ = std::make_shared<SenderSide>();
  std::string endpoint_;
  std::unique_ptr<SenderLink> link_;
};

TEST_F(InProcessTest, DeliversEachKindInOrderAndClosesOnce) {
  Listen();
  Dial();
  EXPECT_OK(link_->Send(Offer{.segment_seq = 1}));
  EXPECT_OK(link_->Send(LinkProgress{.processed_tokens = 7}));
  EXPECT_OK(link_->Send(Seal{}));
  EXPECT_OK(link_->Send(Query{}));
  EXPECT_OK(link_->Send(LinkAbort{.reason = "why"}));
  EXPECT_THAT(
      receiver_.journal.Await(5),
      ElementsAre("offer 1", "progress 7", "seal", "query", "abort why"));
  const std::vector<std::byte> payload(10);
  for (uint64_t seq = 1; seq <= 3; ++seq) {
    EXPECT_OK(link_->SendSegment({.segment_seq = seq}, payload,
                                 absl::InfiniteFuture()));
  }
  EXPECT_THAT(receiver_.segments.Await(3), ElementsAre("1:10", "2:10", "3:10"));
  EXPECT_OK(receiver_.link->Send(Posted{4}));
  EXPECT_OK(receiver_.link->Send(Done{4, true}));
  EXPECT_OK(receiver_.link->Send(Verdict{}));
  EXPECT_THAT(sender_->journal.Await(3),
              ElementsAre("posted 4", "done 4", "verdict"));
  link_.reset();
  EXPECT_THAT(sender_->journal.Await(4),
              ElementsAre("posted 4", "done 4", "verdict",
                          "closed the sender closed the link"));
  EXPECT_THAT(receiver_.journal.Await(6).back(),
              "closed the sender closed the link");
  EXPECT_THAT(receiver_.link->Send(Posted{5}),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(InProcessTest, ReceiverCanCloseAndTheSenderIsTold) {
  Listen();
  Dial();
  receiver_.link->Close(absl::DataLossError("bad offer"));
  EXPECT_THAT(sender_->journal.Await(1), ElementsAre("closed bad offer"));
  EXPECT_THAT(receiver_.journal.Await(1), ElementsAre("closed bad offer"));
  EXPECT_THAT(link_->Send(Offer{}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(link_->SendSegment({}, {}, absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(InProcessTest, StopListeningEndsLinksAsAProcessEndDoes) {
  Listen();
  Dial();
  network_.StopListening("decode");
  EXPECT_THAT(sender_->journal.Await(1),
              ElementsAre("closed the receiver is gone"));
  EXPECT_THAT(receiver_.journal.Await(1),
              ElementsAre("closed the receiver is gone"));
  EXPECT_THAT(network_.Dial(endpoint_, {.receiver_incarnation = 5}, sender_,
                            absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable));
  Listen();  // the name is free again
}

TEST_F(InProcessTest, DialSaysWhatIsWrong) {
  Listen();
  const auto dial = [this](const std::string& endpoint, Incarnation incarnation,
                           absl::Time deadline) {
    return network_
        .Dial(endpoint, {.receiver_incarnation = incarnation}, sender_,
              deadline)
        .status();
  };
  const absl::Time later = clock_.Now() + absl::Seconds(1);
  EXPECT_THAT(dial("inproc:nobody", 5, later),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(dial("decode:1", 5, later),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(dial(endpoint_, 4, later), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(dial(endpoint_, 5, clock_.Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(network_.Listen("decode", &receiver_),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(InProcessTest, SendSegmentKeepsItsDeadline) {
  Listen();
  Dial();
  const std::vector<std::byte> payload(10);
  baton::testing::SyncPoint held("test.on_segment");
  // One is being delivered, two are queued.
  EXPECT_OK(
      link_->SendSegment({.segment_seq = 1}, payload, absl::InfiniteFuture()));
  ASSERT_TRUE(held.WaitUntilReached());
  for (const uint64_t seq : {2, 3}) {
    EXPECT_OK(link_->SendSegment({.segment_seq = seq}, payload,
                                 absl::InfiniteFuture()));
  }
  EXPECT_THAT(link_->SendSegment({.segment_seq = 4}, payload, clock_.Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  held.Release();
  EXPECT_THAT(receiver_.segments.Await(3), ElementsAre("1:10", "2:10", "3:10"));
}

TEST_F(InProcessTest, SchemeDialerChoosesByEndpoint) {
  Listen();
  SchemeDialer dialer(&network_, nullptr);
  EXPECT_OK(dialer.Dial(endpoint_, {.receiver_incarnation = 5}, sender_,
                        clock_.Now() + absl::Seconds(1)));
  EXPECT_THAT(dialer.Dial("127.0.0.1:1", {}, sender_, absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(InProcessTest, LateAcceptorRefusesUntilSet) {
  LateAcceptor late;
  ASSERT_OK_AND_ASSIGN(endpoint_, network_.Listen("late", &late));
  EXPECT_THAT(network_.Dial(endpoint_, {.receiver_incarnation = 5}, sender_,
                            absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable));
  late.Set(&receiver_);
  Dial();
}

}  // namespace
}  // namespace baton::transfer
