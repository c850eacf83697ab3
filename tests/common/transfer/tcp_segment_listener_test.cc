#include "common/transfer/tcp_segment_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"

namespace baton::transfer {
namespace {

using baton::testing::FakeClock;
using baton::testing::StatusIs;

constexpr int64_t kMax = 4096;

class TcpSegmentListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        listener_,
        TcpSegmentListener::Create(
            {.clock = &clock_, .max_segment_bytes = kMax, .max_pending = 4}));
    token_ = listener_->Register(
        7, {.on_segment =
                [this](const SegmentHeader& header,
                       absl::Span<const std::byte> payload) {
                  MutexLock lock(&mu_);
                  received_.emplace_back(
                      header.segment_seq,
                      std::vector<std::byte>(payload.begin(), payload.end()));
                  changed_.SignalAll();
                },
            .on_broken =
                [this](const absl::Status& status) {
                  MutexLock lock(&mu_);
                  broken_ = status;
                  is_broken_ = true;
                  changed_.SignalAll();
                }});
  }
  void TearDown() override { listener_->Unregister(7); }

  Fd Connect() {
    auto fd = ConnectTcp({"127.0.0.1", listener_->port()}, Limit());
    EXPECT_OK(fd);
    return std::move(fd).value_or(Fd());
  }
  Fd ConnectWith(LinkEpoch epoch, const DataToken& token) {
    Fd fd = Connect();
    EXPECT_OK(WriteAll(fd, EncodePreamble({epoch, token}), Limit()));
    return fd;
  }
  WaitLimit Limit() {
    return {.clock = Clock::Real(),
            .deadline = Clock::Real()->Now() + absl::Seconds(20)};
  }
  // The listener closes a connection that it does not want.
  bool Closed(const Fd& fd) {
    std::byte byte;
    return absl::IsUnavailable(ReadAll(fd, absl::MakeSpan(&byte, 1), Limit()));
  }
  template <typename Done>
  bool Await(Done done) {
    const absl::Time end = Clock::Real()->Now() + absl::Seconds(20);
    MutexLock lock(&mu_);
    while (!done()) {
      if (Clock::Real()->Now() > end) return false;
      changed_.WaitFor(&mu_, absl::Milliseconds(5));
    }
    return true;
  }
  absl::Status SendSegment(const Fd& fd, uint64_t seq, size_t bytes) {
    const std::vector<std::byte> payload(bytes, static_cast<std::byte>(seq));
    RETURN_IF_ERROR(WriteAll(
        fd,
        EncodeSegmentHeader({.link_epoch = 7,
                             .segment_seq = seq,
                             .payload_bytes = static_cast<int64_t>(bytes)}),
        Limit()));
    return WriteAll(fd, payload, Limit());
  }

  FakeClock clock_;
  std::unique_ptr<TcpSegmentListener> listener_;
  DataToken token_{};
  Mutex mu_;
  CondVar changed_;
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> received_;
  absl::Status broken_;
  bool is_broken_ = false;
};

TEST_F(TcpSegmentListenerTest, DeliversSegmentsOfAConnectionThatShowsTheToken) {
  const Fd fd = ConnectWith(7, token_);
  const std::vector<size_t> sizes = {1, 15, 4095, 4096};
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_OK(SendSegment(fd, i + 1, sizes[i]));
  }
  ASSERT_TRUE(Await([&] { return received_.size() == sizes.size(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(received_[i].first, i + 1);
    EXPECT_EQ(received_[i].second,
              std::vector<std::byte>(sizes[i], static_cast<std::byte>(i + 1)));
  }
}

TEST_F(TcpSegmentListenerTest, ClosesConnectionsThatAreNotOfALink) {
  DataToken wrong = token_;
  wrong[31] ^= 1;
  EXPECT_TRUE(Closed(ConnectWith(7, wrong)));
  EXPECT_TRUE(Closed(ConnectWith(8, token_)));
  const Fd first = ConnectWith(7, token_);
  ASSERT_OK(SendSegment(first, 1, 16));
  ASSERT_TRUE(Await([&] { return received_.size() == 1; }));
  // One connection per link.
  EXPECT_TRUE(Closed(ConnectWith(7, token_)));
  ASSERT_OK(SendSegment(first, 2, 16));
  ASSERT_TRUE(Await([&] { return received_.size() == 2; }));
}

TEST_F(TcpSegmentListenerTest, GarbageIsClosedAndTheLinkServesOn) {
  SeededRandom random(20261129);
  const Fd good = ConnectWith(7, token_);
  for (int i = 0; i < 50; ++i) {
    const Fd fd = Connect();
    std::vector<std::byte> bytes(kPreambleBytes + random.Uint64() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Uint64());
    // May fail half way: it is closed at the first wrong byte that matters.
    WriteAll(fd, bytes, Limit()).IgnoreError();
    EXPECT_TRUE(Closed(fd)) << i;
  }
  ASSERT_OK(SendSegment(good, 1, 100));
  EXPECT_TRUE(Await([&] { return received_.size() == 1; }));
  EXPECT_FALSE(is_broken_);
}

TEST_F(TcpSegmentListenerTest, SilentConnectionsAreBoundedAndTimedOut) {
  std::vector<Fd> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(Connect());
  ASSERT_TRUE(Await([&] { return listener_->pending_connections() == 4; }));
  EXPECT_TRUE(Closed(Connect())) << "a fifth";
  clock_.Advance(absl::Seconds(6));
  for (const Fd& fd : silent) EXPECT_TRUE(Closed(fd));
  const Fd good = ConnectWith(7, token_);
  ASSERT_OK(SendSegment(good, 1, 100));
  EXPECT_TRUE(Await([&] { return received_.size() == 1; }));
}

TEST_F(TcpSegmentListenerTest, WrongHeaderBreaksTheLink) {
  const Fd fd = ConnectWith(7, token_);
  ASSERT_OK(SendSegment(fd, 1, 100));
  SegmentHeaderBytes header = EncodeSegmentHeader({.payload_bytes = kMax + 1});
  ASSERT_OK(WriteAll(fd, header, Limit()));
  ASSERT_TRUE(Await([&] { return is_broken_; }));
  EXPECT_THAT(broken_, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(received_.size(), 1U);
}

TEST_F(TcpSegmentListenerTest, EndInTheMiddleOfASegmentBreaksTheLink) {
  {
    const Fd fd = ConnectWith(7, token_);
    ASSERT_OK(
        WriteAll(fd, EncodeSegmentHeader({.payload_bytes = 100}), Limit()));
  }
  ASSERT_TRUE(Await([&] { return is_broken_; }));
  EXPECT_THAT(broken_, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TcpSegmentListenerTest, StalledSegmentBreaksTheLinkButAnIdleOneStays) {
  const Fd fd = ConnectWith(7, token_);
  ASSERT_OK(SendSegment(fd, 1, 100));
  ASSERT_TRUE(Await([&] { return received_.size() == 1; }));
  clock_.Advance(absl::Hours(1));
  ASSERT_OK(SendSegment(fd, 2, 100));
  ASSERT_TRUE(Await([&] { return received_.size() == 2; }));
  EXPECT_FALSE(is_broken_);
  ASSERT_OK(WriteAll(fd, EncodeSegmentHeader({.payload_bytes = 100}), Limit()));
  // The header may not have been read yet: time passes until it was.
  ASSERT_TRUE(Await([&] {
    clock_.Advance(absl::Seconds(31));
    return is_broken_;
  }));
  EXPECT_THAT(broken_, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(TcpSocketTest, ParsesHostAndPort) {
  for (const char* bad :
       {"", "host", "host:", ":1", "host:65536", "host:-1", "host:x"}) {
    EXPECT_THAT(ParseHostPort(bad),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
  }
  ASSERT_OK_AND_ASSIGN(const HostPort v4, ParseHostPort("127.0.0.1:80"));
  EXPECT_EQ(v4.host, "127.0.0.1");
  EXPECT_EQ(v4.port, 80);
  ASSERT_OK_AND_ASSIGN(const HostPort v6, ParseHostPort("[::1]:65535"));
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, 65535);
}

}  // namespace
}  // namespace baton::transfer
