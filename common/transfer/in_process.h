// Links between a sender and a receiver of one process: endpoints
// "inproc:NAME". Used by the colocated mode and by tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/transfer/link.h"

namespace baton::transfer {

// Thread-safe. Each link has three threads: control to the receiver, segments
// to the receiver (at most two queued), answers to the sender. Messages of one
// kind arrive in the order sent; what was not delivered when the link closes is
// lost.
class InProcessNetwork final : public LinkDialer {
 public:
  explicit InProcessNetwork(Clock* clock = Clock::Real());
  // Stops all listeners. Senders' links must be gone or stay unused.
  ~InProcessNetwork() override;
  InProcessNetwork(const InProcessNetwork&) = delete;
  InProcessNetwork& operator=(const InProcessNetwork&) = delete;

  // The endpoint at which `acceptor` answers from now on. ALREADY_EXISTS.
  absl::StatusOr<std::string> Listen(absl::string_view name,
                                     LinkAcceptor* acceptor);
  // As if the receiver's process ended: its links close; no call into the
  // acceptor or its handlers is running or follows when this returns.
  void StopListening(absl::string_view name);

  absl::StatusOr<std::unique_ptr<SenderLink>> Dial(
      const std::string& endpoint, const LinkHello& hello,
      std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) override;

 private:
  class Pipe;
  class SenderEnd;
  class ReceiverEnd;
  struct Listener {
    LinkAcceptor* acceptor = nullptr;
    int32_t dialing = 0;
    bool stopping = false;
    std::vector<std::shared_ptr<Pipe>> pipes;
  };

  Clock* const clock_;
  Mutex mu_;
  CondVar dialed_;
  std::map<std::string, Listener> listeners_ BATON_GUARDED_BY(mu_);
  LinkEpoch next_epoch_ BATON_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::transfer
