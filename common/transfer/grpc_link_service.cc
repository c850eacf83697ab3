#include "common/transfer/grpc_link_service.h"

#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/transfer/link_proto.h"

namespace baton::transfer {

// Answers, from any thread. Outlives the call: afterwards Send is a no-op.
// Lock order: mu_ is a leaf; gRPC is called without it. That is safe because
// the call cannot end (OnDone) before a write under way has ended and Finish
// was called.
class GrpcLinkService::End final : public ReceiverLink {
 public:
  explicit End(Reactor* reactor) : reactor_(reactor) {}

  absl::Status Send(const Posted& m) override {
    v1::LinkResponse response;
    *response.mutable_posted() = ToProto(m);
    return Push(std::move(response));
  }
  absl::Status Send(const Done& m) override {
    v1::LinkResponse response;
    *response.mutable_done() = ToProto(m);
    return Push(std::move(response));
  }
  absl::Status Send(const Verdict& m) override {
    v1::LinkResponse response;
    *response.mutable_verdict() = ToProto(m);
    return Push(std::move(response));
  }
  absl::Status Push(v1::LinkResponse response);
  void Close(const absl::Status& status) override;
  void OnWriteDone(bool ok);
  // Why the link ended; OK when nobody closed it.
  absl::Status status();

 private:
  Reactor* const reactor_;
  Mutex mu_;
  std::deque<v1::LinkResponse> queue_ BATON_GUARDED_BY(mu_);
  bool writing_ BATON_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> closed_ BATON_GUARDED_BY(mu_);
};

class GrpcLinkService::Reactor final
    : public grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse> {
 public:
  explicit Reactor(GrpcLinkService* service)
      : service_(service), end_(std::make_shared<End>(this)) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      end_->Close(absl::UnavailableError("the sender closed the link"));
      return;
    }
    const absl::Status status = Handle();
    if (!status.ok()) {
      end_->Close(status);
      return;
    }
    StartRead(&request_);
  }
  void OnWriteDone(bool ok) override { end_->OnWriteDone(ok); }
  void OnCancel() override {
    end_->Close(absl::UnavailableError("the link's call was cancelled"));
  }
  void OnDone() override { service_->Reap(this); }

  // On the reaper's thread.
  void TearDown() {
    if (handler_ == nullptr) return;
    service_->listener_->Unregister(epoch_);
    handler_->OnLinkClosed(end_->status());
  }

 private:
  absl::Status Handle();
  absl::Status HandleHello(const v1::Hello& hello);

  GrpcLinkService* const service_;
  const std::shared_ptr<End> end_;
  v1::LinkRequest request_;
  LinkEpoch epoch_ = 0;
  std::shared_ptr<LinkReceiverHandler> handler_;
};

absl::Status GrpcLinkService::End::Push(v1::LinkResponse response) {
  const v1::LinkResponse* next = nullptr;
  {
    MutexLock lock(&mu_);
    if (closed_.has_value()) return absl::UnavailableError("link closed");
    queue_.push_back(std::move(response));
    if (!writing_) {
      writing_ = true;
      next = &queue_.front();
    }
  }
  if (next != nullptr) reactor_->StartWrite(next);
  return absl::OkStatus();
}

void GrpcLinkService::End::OnWriteDone(bool ok) {
  const v1::LinkResponse* next = nullptr;
  std::optional<absl::Status> finish;
  {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (!ok && !closed_.has_value()) {
      closed_ = absl::UnavailableError("the sender is gone");
    }
    if (closed_.has_value()) {
      writing_ = false;
      finish = closed_;
    } else if (queue_.empty()) {
      writing_ = false;
    } else {
      next = &queue_.front();
    }
  }
  if (next != nullptr) reactor_->StartWrite(next);
  if (finish.has_value()) reactor_->Finish(rpc::ToGrpc(*finish));
}

void GrpcLinkService::End::Close(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (closed_.has_value()) return;
    closed_ = status;
    if (writing_) return;  // OnWriteDone finishes
  }
  reactor_->Finish(rpc::ToGrpc(status));
}

absl::Status GrpcLinkService::End::status() {
  MutexLock lock(&mu_);
  return closed_.value_or(absl::UnavailableError("link closed"));
}

absl::Status GrpcLinkService::Reactor::HandleHello(const v1::Hello& proto) {
  ASSIGN_OR_RETURN(const LinkHello hello, FromProto(proto));
  const LinkEpoch epoch = service_->NextEpoch();
  ASSIGN_OR_RETURN(auto handler,
                   service_->acceptor_->Accept(hello, epoch, end_));
  const std::shared_ptr<End> end = end_;
  LinkReceiverHandler* const raw = handler.get();
  const DataToken token = service_->listener_->Register(
      epoch, {.on_segment =
                  [raw](const SegmentHeader& header,
                        absl::Span<const std::byte> payload) {
                    raw->OnSegment(header, payload);
                  },
              .on_broken =
                  [end](const absl::Status& status) {
                    end->Close(Annotate(status, "data connection"));
                  }});
  epoch_ = epoch;
  handler_ = std::move(handler);
  v1::LinkResponse response;
  v1::Welcome* const welcome = response.mutable_welcome();
  welcome->set_link_epoch(epoch);
  welcome->set_data_endpoint(service_->listener_->endpoint());
  welcome->set_receiver_incarnation(service_->incarnation_);
  welcome->set_data_token(std::string(token.begin(), token.end()));
  return end_->Push(std::move(response));
}

absl::Status GrpcLinkService::Reactor::Handle() {
  using Message = v1::LinkRequest;
  const bool is_hello = request_.message_case() == Message::kHello;
  if (is_hello != (handler_ == nullptr)) {
    return absl::InvalidArgumentError(
        "Hello is expected as the first message and never again");
  }
  switch (request_.message_case()) {
    case Message::kHello:
      return HandleHello(request_.hello());
    case Message::kOffer: {
      ASSIGN_OR_RETURN(const Offer m, FromProto(request_.offer()));
      handler_->OnOffer(m);
      break;
    }
    case Message::kSeal: {
      ASSIGN_OR_RETURN(Seal m, FromProto(request_.seal()));
      handler_->OnSeal(std::move(m));
      break;
    }
    case Message::kAbort: {
      ASSIGN_OR_RETURN(const LinkAbort m, FromProto(request_.abort()));
      handler_->OnAbort(m);
      break;
    }
    case Message::kQuery: {
      ASSIGN_OR_RETURN(const Query m, FromProto(request_.query()));
      handler_->OnQuery(m);
      break;
    }
    case Message::kProgress: {
      ASSIGN_OR_RETURN(const LinkProgress m, FromProto(request_.progress()));
      handler_->OnProgress(m);
      break;
    }
    case Message::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("a link message without content");
  }
  return absl::OkStatus();
}

GrpcLinkService::GrpcLinkService(LinkAcceptor* acceptor,
                                 TcpSegmentListener* listener,
                                 Incarnation incarnation)
    : acceptor_(acceptor),
      listener_(listener),
      incarnation_(incarnation),
      reaper_("link-reaper", [this] { RunReaper(); }) {}

GrpcLinkService::~GrpcLinkService() {
  MutexLock lock(&mu_);
  stopping_ = true;
  changed_.SignalAll();
  // The server is shut down, so each call has ended or is about to.
  while (reactors_ > 0) changed_.Wait(&mu_);
}

grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>*
GrpcLinkService::Link(grpc::CallbackServerContext* /*context*/) {
  {
    MutexLock lock(&mu_);
    ++reactors_;
  }
  return new Reactor(this);
}

LinkEpoch GrpcLinkService::NextEpoch() {
  MutexLock lock(&mu_);
  return next_epoch_++;
}

void GrpcLinkService::Reap(Reactor* reactor) {
  MutexLock lock(&mu_);
  done_.push_back(reactor);
  changed_.SignalAll();
}

void GrpcLinkService::RunReaper() {
  while (true) {
    Reactor* reactor = nullptr;
    {
      MutexLock lock(&mu_);
      while (done_.empty() && !(stopping_ && reactors_ == 0)) {
        changed_.Wait(&mu_);
      }
      if (done_.empty()) return;
      reactor = done_.front();
      done_.pop_front();
    }
    reactor->TearDown();
    delete reactor;
    MutexLock lock(&mu_);
    --reactors_;
    changed_.SignalAll();
  }
}

}  // namespace baton::transfer
