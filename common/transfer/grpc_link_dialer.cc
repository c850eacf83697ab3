#include "common/transfer/grpc_link_dialer.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "baton/v1/transfer.grpc.pb.h"
#include "common/base/fault_point.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/transfer/link_proto.h"
#include "common/transfer/segment_header.h"
#include "common/transfer/tcp_socket.h"

namespace baton::transfer {

namespace {

// How often a wait looks at the injected clock, in real time.
constexpr absl::Duration kClockPoll = absl::Milliseconds(20);

// Lock order: mu_ is a leaf; gRPC and the handler are called without it. The
// hold of AddHold keeps the call from ending (OnDone) while writes may start;
// it is given up once, when the link is closed and no write is under way.
class Call final
    : public grpc::ClientBidiReactor<v1::LinkRequest, v1::LinkResponse> {
 public:
  Call(const std::string& endpoint, std::shared_ptr<LinkSenderHandler> handler,
       Clock* clock)
      : clock_(clock),
        handler_(std::move(handler)),
        channel_(rpc::CreateChannel(endpoint)),
        stub_(v1::LinkService::NewStub(channel_)) {}

  void Start(const v1::Hello& hello) {
    stub_->async()->Link(&context_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
    v1::LinkRequest request;
    *request.mutable_hello() = hello;
    // Only fails when closed already: AwaitWelcome tells.
    Push(std::move(request)).IgnoreError();
  }

  absl::StatusOr<v1::Welcome> AwaitWelcome(absl::Time deadline) {
    MutexLock lock(&mu_);
    while (!welcome_.has_value() && !done_) {
      if (clock_->Now() >= deadline) {
        return absl::UnavailableError("no Welcome in time");
      }
      changed_.WaitFor(&mu_, kClockPoll);
    }
    if (welcome_.has_value()) return *welcome_;
    return end_status_;
  }

  // From now on the handler is told when the link ends. False: it has ended.
  bool Establish() {
    MutexLock lock(&mu_);
    established_ = !done_;
    return established_;
  }

  absl::Status Push(v1::LinkRequest request) {
    const v1::LinkRequest* next = nullptr;
    {
      MutexLock lock(&mu_);
      if (closed_.has_value()) return absl::UnavailableError("link closed");
      queue_.push_back(std::move(request));
      if (!writing_) {
        writing_ = true;
        next = &queue_.front();
      }
    }
    if (next != nullptr) StartWrite(next);
    return absl::OkStatus();
  }

  void Close(const absl::Status& status) {
    bool release = false;
    {
      MutexLock lock(&mu_);
      if (closed_.has_value()) return;
      closed_ = status;
      release = !writing_;
    }
    wake_.Signal();
    context_.TryCancel();
    if (release) RemoveHold();
  }

  void AwaitDone() {
    MutexLock lock(&mu_);
    while (!done_) changed_.Wait(&mu_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      EndOfStream();
      return;
    }
    const absl::Status status = Handle();
    if (!status.ok()) {
      Close(status);
      return;
    }
    StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    const v1::LinkRequest* next = nullptr;
    bool release = false;
    {
      MutexLock lock(&mu_);
      queue_.pop_front();
      if (closed_.has_value()) {
        writing_ = false;
        release = true;
      } else if (!ok || queue_.empty()) {
        // Not ok: the stream ended, which the read tells.
        writing_ = false;
      } else {
        next = &queue_.front();
      }
    }
    if (next != nullptr) StartWrite(next);
    if (release) RemoveHold();
  }

  void OnDone(const grpc::Status& grpc_status) override {
    std::shared_ptr<LinkSenderHandler> handler;
    absl::Status status;
    {
      MutexLock lock(&mu_);
      // What this side closed for, if it did; else what the receiver said.
      status = closed_.has_value() && !closed_->ok()
                   ? *closed_
                   : rpc::FromGrpc(grpc_status);
      if (status.ok()) {
        status = absl::UnavailableError("the receiver closed the link");
      }
      end_status_ = status;
      if (established_) handler = std::move(handler_);
      if (handler == nullptr) {
        done_ = true;
        changed_.SignalAll();
      }
    }
    if (handler == nullptr) return;
    handler->OnLinkClosed(status);
    MutexLock lock(&mu_);
    done_ = true;
    changed_.SignalAll();
  }

  Clock* clock() const { return clock_; }
  const WakeFd& wake() const { return wake_; }

 private:
  // The receiver ended the stream: its status comes with OnDone.
  void EndOfStream() {
    bool release = false;
    {
      MutexLock lock(&mu_);
      if (closed_.has_value()) return;
      closed_ = absl::OkStatus();
      release = !writing_;
    }
    wake_.Signal();
    if (release) RemoveHold();
  }

  absl::Status Handle() {
    using Message = v1::LinkResponse;
    switch (response_.message_case()) {
      case Message::kWelcome: {
        MutexLock lock(&mu_);
        if (welcome_.has_value()) {
          return absl::DataLossError("a second Welcome");
        }
        welcome_ = response_.welcome();
        changed_.SignalAll();
        return absl::OkStatus();
      }
      case Message::kPosted:
        handler_->OnPosted(FromProto(response_.posted()));
        return absl::OkStatus();
      case Message::kDone:
        handler_->OnDone(FromProto(response_.done()));
        return absl::OkStatus();
      case Message::kVerdict: {
        ASSIGN_OR_RETURN(const Verdict m, FromProto(response_.verdict()));
        handler_->OnVerdict(m);
        return absl::OkStatus();
      }
      case Message::MESSAGE_NOT_SET:
        break;
    }
    return absl::DataLossError("a link message without content");
  }

  Clock* const clock_;
  std::shared_ptr<LinkSenderHandler> handler_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::LinkService::Stub> stub_;
  grpc::ClientContext context_;
  v1::LinkResponse response_;
  WakeFd wake_;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::LinkRequest> queue_ BATON_GUARDED_BY(mu_);
  bool writing_ BATON_GUARDED_BY(mu_) = false;
  // Why this side ended the link; OK: the receiver ended it.
  std::optional<absl::Status> closed_ BATON_GUARDED_BY(mu_);
  std::optional<v1::Welcome> welcome_ BATON_GUARDED_BY(mu_);
  bool established_ BATON_GUARDED_BY(mu_) = false;
  bool done_ BATON_GUARDED_BY(mu_) = false;
  absl::Status end_status_ BATON_GUARDED_BY(mu_);
};

class RemoteLink final : public SenderLink {
 public:
  RemoteLink(std::unique_ptr<Call> call, LinkEpoch epoch, Fd data)
      : call_(std::move(call)), epoch_(epoch), data_(std::move(data)) {}
  ~RemoteLink() override {
    call_->Close(absl::UnavailableError("the sender closed the link"));
    call_->AwaitDone();
  }

  LinkEpoch epoch() const override { return epoch_; }
  absl::Status Send(const Offer& m) override {
    v1::LinkRequest request;
    *request.mutable_offer() = ToProto(m);
    return call_->Push(std::move(request));
  }
  absl::Status Send(const Seal& m) override {
    v1::LinkRequest request;
    *request.mutable_seal() = ToProto(m);
    return call_->Push(std::move(request));
  }
  absl::Status Send(const LinkAbort& m) override {
    v1::LinkRequest request;
    *request.mutable_abort() = ToProto(m);
    return call_->Push(std::move(request));
  }
  absl::Status Send(const Query& m) override {
    v1::LinkRequest request;
    *request.mutable_query() = ToProto(m);
    return call_->Push(std::move(request));
  }
  absl::Status Send(const LinkProgress& m) override {
    v1::LinkRequest request;
    *request.mutable_progress() = ToProto(m);
    return call_->Push(std::move(request));
  }

  absl::Status SendSegment(const SegmentHeader& header,
                           absl::Span<const std::byte> payload,
                           absl::Time deadline) override {
    BATON_FAULT_POINT("transfer.delay_segment");
    if (BATON_FAULT("transfer.drop_link", "")) {
      call_->Close(absl::UnavailableError("dropped by transfer.drop_link"));
      return absl::UnavailableError("link closed");
    }
    std::vector<std::byte> corrupted;
    if (BATON_FAULT("transfer.corrupt_segment", "")) {
      corrupted.assign(payload.begin(), payload.end());
      corrupted[corrupted.size() / 2] ^= std::byte{0x10};
      payload = corrupted;
    }
    const WaitLimit limit{
        .clock = call_->clock(), .deadline = deadline, .wake = &call_->wake()};
    MutexLock lock(&data_mu_);
    absl::Status status = WriteAll(data_, EncodeSegmentHeader(header), limit);
    if (status.ok()) status = WriteAll(data_, payload, limit);
    if (status.ok()) return status;
    if (absl::IsCancelled(status)) {
      return absl::UnavailableError("link closed");
    }
    // Half a segment may be out: nothing can follow it.
    call_->Close(Annotate(status, "data connection"));
    return status;
  }

 private:
  const std::unique_ptr<Call> call_;
  const LinkEpoch epoch_;
  Mutex data_mu_;  // segments are written whole
  Fd data_;
};

absl::StatusOr<Fd> ConnectData(const v1::Welcome& welcome, const Call& call,
                               absl::Time deadline) {
  absl::string_view endpoint = welcome.data_endpoint();
  DataPreamble preamble{.link_epoch = welcome.link_epoch()};
  if (!absl::ConsumePrefix(&endpoint, "tcp:") ||
      welcome.data_token().size() != preamble.token.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Welcome with data endpoint '", welcome.data_endpoint(),
                     "' and a token of ", welcome.data_token().size(),
                     " bytes, expected tcp:HOST:PORT and 32"));
  }
  std::copy(welcome.data_token().begin(), welcome.data_token().end(),
            preamble.token.begin());
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(endpoint));
  const WaitLimit limit{
      .clock = call.clock(), .deadline = deadline, .wake = &call.wake()};
  ASSIGN_OR_RETURN(Fd fd, ConnectTcp(address, limit));
  RETURN_IF_ERROR(WriteAll(fd, EncodePreamble(preamble), limit));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SenderLink>> GrpcLinkDialer::Dial(
    const std::string& endpoint, const LinkHello& hello,
    std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) {
  auto call = std::make_unique<Call>(endpoint, std::move(handler), clock_);
  call->Start(ToProto(hello));
  const auto fail = [&call](const absl::Status& status) {
    call->Close(status);
    call->AwaitDone();
    return status;
  };
  const auto welcome = call->AwaitWelcome(deadline);
  if (!welcome.ok()) return fail(welcome.status());
  if (welcome->receiver_incarnation() != hello.receiver_incarnation) {
    return fail(absl::AbortedError(absl::StrCat(
        "receiver has incarnation ", welcome->receiver_incarnation(),
        ", the ticket says ", hello.receiver_incarnation)));
  }
  absl::StatusOr<Fd> data = ConnectData(*welcome, *call, deadline);
  if (!data.ok()) {
    return fail(absl::UnavailableError(
        absl::StrCat("data connection: ", data.status().message())));
  }
  if (!call->Establish()) {
    return fail(absl::UnavailableError("the receiver closed the link"));
  }
  return std::make_unique<RemoteLink>(std::move(call), welcome->link_epoch(),
                                      *std::move(data));
}

}  // namespace baton::transfer
