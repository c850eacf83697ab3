// The receiver's end of remote links: baton.v1.LinkService for control, a
// TcpSegmentListener for segments.
#pragma once

#include <deque>
#include <memory>

#include "baton/v1/transfer.grpc.pb.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/transfer/link.h"
#include "common/transfer/tcp_segment_listener.h"

namespace baton::transfer {

// Register with the server of the role (rpc::ServerOptions.services). To end:
// shut the server down (its grace ends the links), destroy this, then the
// listener, then the acceptor.
class GrpcLinkService final : public v1::LinkService::CallbackService {
 public:
  // All outlive this. `incarnation` is told to senders in Welcome.
  GrpcLinkService(LinkAcceptor* acceptor, TcpSegmentListener* listener,
                  Incarnation incarnation);
  // Waits until the ends of all links were told to their handlers.
  ~GrpcLinkService() override;

  grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* Link(
      grpc::CallbackServerContext* context) override;

 private:
  class Reactor;
  class End;

  LinkEpoch NextEpoch();
  // The call is over: tells the handler and deletes the reactor on the reaper's
  // thread, where waiting for a last scatter is allowed.
  void Reap(Reactor* reactor);
  void RunReaper();

  LinkAcceptor* const acceptor_;
  TcpSegmentListener* const listener_;
  const Incarnation incarnation_;
  Mutex mu_;
  CondVar changed_;
  LinkEpoch next_epoch_ BATON_GUARDED_BY(mu_) = 1;
  int32_t reactors_ BATON_GUARDED_BY(mu_) = 0;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  std::deque<Reactor*> done_ BATON_GUARDED_BY(mu_);
  Thread reaper_;
};

}  // namespace baton::transfer
