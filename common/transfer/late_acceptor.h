// Breaks the circle between a receiver, which must know its endpoint, and the
// service that learns the endpoint when it starts and needs an acceptor.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "common/transfer/link.h"

namespace baton::transfer {

// Thread-safe. Refuses links with UNAVAILABLE until Set; set once.
class LateAcceptor final : public LinkAcceptor {
 public:
  void Set(LinkAcceptor* acceptor) {
    acceptor_.store(acceptor, std::memory_order_release);
  }
  absl::StatusOr<std::shared_ptr<LinkReceiverHandler>> Accept(
      const LinkHello& hello, LinkEpoch epoch,
      std::shared_ptr<ReceiverLink> link) override {
    LinkAcceptor* const acceptor = acceptor_.load(std::memory_order_acquire);
    if (acceptor == nullptr) {
      return absl::UnavailableError("the receiver is starting");
    }
    return acceptor->Accept(hello, epoch, std::move(link));
  }

 private:
  // Publication of a pointer: release in Set, acquire in Accept.
  std::atomic<LinkAcceptor*> acceptor_ = nullptr;
};

}  // namespace baton::transfer
