#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/server.h"
#include "common/transfer/grpc_link_dialer.h"
#include "common/transfer/grpc_link_service.h"
#include "common/transfer/tcp_segment_listener.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {

namespace {

class Host final : public TestHost {
 public:
  Host(Clock* clock, Incarnation incarnation, const std::string& endpoint) {
    auto listener = transfer::TcpSegmentListener::Create({.clock = clock});
    CHECK_OK(listener);
    listener_ = *std::move(listener);
    service_ = std::make_unique<transfer::GrpcLinkService>(
        &acceptor, listener_.get(), incarnation);
    auto server = rpc::Server::Start(
        {.address = endpoint.empty() ? "127.0.0.1:0" : endpoint,
         .services = {service_.get()}});
    CHECK_OK(server);
    server_ = *std::move(server);
  }
  ~Host() override {
    server_->Shutdown(absl::ZeroDuration());
    service_.reset();
  }
  std::string endpoint() const override { return server_->address(); }

 private:
  std::unique_ptr<transfer::TcpSegmentListener> listener_;
  std::unique_ptr<transfer::GrpcLinkService> service_;
  std::unique_ptr<rpc::Server> server_;
};

class Transport final : public TestTransport {
 public:
  explicit Transport(Clock* clock) : clock_(clock), dialer_(clock) {}
  std::unique_ptr<TestHost> Listen(Incarnation incarnation,
                                   const std::string& endpoint) override {
    return std::make_unique<Host>(clock_, incarnation, endpoint);
  }
  transfer::LinkDialer* dialer() override { return &dialer_; }
  int repetitions() const override { return 20; }

 private:
  Clock* const clock_;
  transfer::GrpcLinkDialer dialer_;
};

}  // namespace

std::unique_ptr<TestTransport> NewTestTransport(Clock* clock) {
  return std::make_unique<Transport>(clock);
}

}  // namespace baton::handoff
