// What a remote peer that does not keep to the protocol is told.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/rpc/server.h"
#include "common/testing/status_matchers.h"
#include "common/transfer/grpc_link_dialer.h"
#include "common/transfer/grpc_link_service.h"
#include "common/transfer/late_acceptor.h"
#include "common/transfer/link_proto.h"

namespace baton::transfer {
namespace {

using baton::testing::StatusIs;

class Deaf final : public LinkSenderHandler {
 public:
  void OnPosted(const Posted&) override {}
  void OnDone(const Done&) override {}
  void OnVerdict(const Verdict&) override {}
  void OnLinkClosed(const absl::Status&) override {}
};

class GrpcLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(listener_, TcpSegmentListener::Create({}));
    service_ = std::make_unique<GrpcLinkService>(&acceptor_, listener_.get(),
                                                 /*incarnation=*/5);
    ASSERT_OK_AND_ASSIGN(
        server_, rpc::Server::Start(
                     {.address = "127.0.0.1:0", .services = {service_.get()}}));
  }
  void TearDown() override {
    server_->Shutdown(absl::ZeroDuration());
    service_.reset();
  }

  // The status with which a call ends that sends this first.
  grpc::StatusCode FirstMessage(const v1::LinkRequest& request) {
    const auto stub =
        v1::LinkService::NewStub(rpc::CreateChannel(server_->address()));
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(absl::Seconds(20)));
    auto stream = stub->Link(&context);
    stream->Write(request);
    v1::LinkResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish().error_code();
  }

  LateAcceptor acceptor_;  // refuses with UNAVAILABLE
  std::unique_ptr<TcpSegmentListener> listener_;
  std::unique_ptr<GrpcLinkService> service_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(GrpcLinkTest, FirstMessageMustBeAWellFormedHello) {
  v1::LinkRequest request;
  EXPECT_EQ(FirstMessage(request), grpc::StatusCode::INVALID_ARGUMENT);
  *request.mutable_offer() = ToProto(Offer{.handoff = {1, 2}, .attempt = 1});
  EXPECT_EQ(FirstMessage(request), grpc::StatusCode::INVALID_ARGUMENT);
  *request.mutable_hello() = ToProto(LinkHello{});
  EXPECT_EQ(FirstMessage(request), grpc::StatusCode::UNAVAILABLE);
  request.mutable_hello()->set_direction(v1::DIRECTION_PULL);
  EXPECT_EQ(FirstMessage(request), grpc::StatusCode::FAILED_PRECONDITION);
  *request.mutable_hello() = ToProto(LinkHello{});
  request.mutable_hello()->set_model_digest("short");
  EXPECT_EQ(FirstMessage(request), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcLinkTest, DialSaysWhatTheAcceptorSaid) {
  GrpcLinkDialer dialer;
  EXPECT_THAT(dialer.Dial(server_->address(), {}, std::make_shared<Deaf>(),
                          Clock::Real()->Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable,
                       ::testing::HasSubstr("starting")));
}

TEST_F(GrpcLinkTest, DialKeepsItsDeadlineWhenThePeerIsSilent) {
  // Accepts connections in the kernel and never says a word.
  ASSERT_OK_AND_ASSIGN(const Fd silent, ListenTcp({"127.0.0.1", 0}));
  ASSERT_OK_AND_ASSIGN(const int port, LocalPort(silent));
  GrpcLinkDialer dialer;
  EXPECT_THAT(dialer.Dial(absl::StrCat("127.0.0.1:", port), {},
                          std::make_shared<Deaf>(),
                          Clock::Real()->Now() + absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(GrpcLinkTest, DialIsRefusedWhereNobodyListens) {
  int port = 0;
  {
    ASSERT_OK_AND_ASSIGN(const Fd once, ListenTcp({"127.0.0.1", 0}));
    ASSERT_OK_AND_ASSIGN(port, LocalPort(once));
  }
  GrpcLinkDialer dialer;
  EXPECT_THAT(dialer.Dial(absl::StrCat("127.0.0.1:", port), {},
                          std::make_shared<Deaf>(),
                          Clock::Real()->Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace baton::transfer
