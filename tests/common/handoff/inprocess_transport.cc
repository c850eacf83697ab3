#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/transfer/in_process.h"
#include "tests/common/handoff/handoff_pair.h"

namespace baton::handoff {

namespace {

class Host final : public TestHost {
 public:
  explicit Host(transfer::InProcessNetwork* network) : network_(network) {
    auto endpoint = network_->Listen("receiver", &acceptor);
    CHECK_OK(endpoint);
    endpoint_ = *endpoint;
  }
  ~Host() override { network_->StopListening("receiver"); }
  std::string endpoint() const override { return endpoint_; }

 private:
  transfer::InProcessNetwork* const network_;
  std::string endpoint_;
};

class Transport final : public TestTransport {
 public:
  explicit Transport(Clock* clock) : network_(clock) {}
  std::unique_ptr<TestHost> Listen(Incarnation,
                                   const std::string& /*endpoint*/) override {
    return std::make_unique<Host>(&network_);
  }
  transfer::LinkDialer* dialer() override { return &network_; }
  int repetitions() const override { return 100; }

 private:
  transfer::InProcessNetwork network_;
};

}  // namespace

std::unique_ptr<TestTransport> NewTestTransport(Clock* clock) {
  return std::make_unique<Transport>(clock);
}

}  // namespace baton::handoff
