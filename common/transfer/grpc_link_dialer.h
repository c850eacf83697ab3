// The sender's end of remote links: control over gRPC to HOST:PORT, segments
// over TCP to the data endpoint of Welcome.
#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/transfer/link.h"

namespace baton::transfer {

// Thread-safe.
class GrpcLinkDialer final : public LinkDialer {
 public:
  explicit GrpcLinkDialer(Clock* clock = Clock::Real()) : clock_(clock) {}

  absl::StatusOr<std::unique_ptr<SenderLink>> Dial(
      const std::string& endpoint, const LinkHello& hello,
      std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) override;

 private:
  Clock* const clock_;
};

}  // namespace baton::transfer
