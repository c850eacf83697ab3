// Chooses the transport by the endpoint: "inproc:NAME" or HOST:PORT.
#pragma once

#include <memory>
#include <string>

#include "common/transfer/link.h"

namespace baton::transfer {

// Thread-safe when both dialers are. Either may be null: endpoints of its kind
// are then refused with INVALID_ARGUMENT. Both outlive this.
class SchemeDialer final : public LinkDialer {
 public:
  SchemeDialer(LinkDialer* in_process, LinkDialer* remote)
      : in_process_(in_process), remote_(remote) {}

  absl::StatusOr<std::unique_ptr<SenderLink>> Dial(
      const std::string& endpoint, const LinkHello& hello,
      std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) override;

 private:
  LinkDialer* const in_process_;
  LinkDialer* const remote_;
};

}  // namespace baton::transfer
