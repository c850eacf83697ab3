#include "decode_worker/service/decode_call.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "decode_worker/service/convert.h"

namespace baton::decode_worker {
namespace {

absl::Status Cancelled(absl::string_view message) {
  return request::MakeError(
      absl::StatusCode::kCancelled, message,
      {.reason = request::ErrorReason::kCancelled, .field = ""});
}

}  // namespace

DecodeCall* DecodeCall::Begin(DecodeBackend* backend,
                              grpc::CallbackServerContext* context) {
  std::shared_ptr<DecodeCall> call(new DecodeCall(backend, context));
  call->self_ = call;
  if (backend == nullptr) {
    MutexLock lock(&call->mu_);
    call->EndWith(request::MakeError(
        absl::StatusCode::kUnavailable, "this decode worker is loading",
        {.reason = request::ErrorReason::kNoWorker, .field = ""}));
  } else {
    call->StartRead(&call->message_);
  }
  return call.get();
}

std::shared_ptr<RequestOutput> DecodeCall::output() const {
  MutexLock lock(&mu_);
  return output_;
}

void DecodeCall::EndWith(const absl::Status& status) {
  if (finished_) return;
  finished_ = true;
  Finish(rpc::ToGrpc(status));
}

void DecodeCall::OnReadDone(bool ok) {
  if (!ok) {
    // The router sends no more; without a Start there is nothing to do.
    MutexLock lock(&mu_);
    if (output_ == nullptr) {
      EndWith(request::InvalidField("message", "stream ended before Start"));
    }
    return;
  }
  const absl::Status status = HandleMessage();
  if (status.ok()) {
    StartRead(&message_);
    return;
  }
  const std::shared_ptr<RequestOutput> output = this->output();
  if (output != nullptr) {
    backend_->Cancel(output, status);
  } else {
    MutexLock lock(&mu_);
    EndWith(status);
  }
}

absl::Status DecodeCall::HandleMessage() {
  const std::shared_ptr<RequestOutput> output = this->output();
  switch (message_.message_case()) {
    case v1::DecodeRequest::kStart:
      if (output == nullptr) return HandleStart();
      return request::InvalidField("message", "a second Start");
    case v1::DecodeRequest::kReticket:
      if (output == nullptr) break;
      backend_->Reticket(output, message_.reticket().attempt());
      return absl::OkStatus();
    case v1::DecodeRequest::kAbort:
      if (output == nullptr) break;
      backend_->Cancel(output,
                       Cancelled(absl::StrCat("aborted by the router: ",
                                              message_.abort().reason())));
      return absl::OkStatus();
    case v1::DecodeRequest::MESSAGE_NOT_SET:
      return request::InvalidField("message", "empty or not known here");
  }
  return request::InvalidField("message", "expected Start first");
}

absl::Status DecodeCall::HandleStart() {
  absl::Duration left;
  {
    MutexLock lock(&mu_);
    if (context_ == nullptr) return Cancelled("the call is over");
    left = rpc::TimeLeft(*context_);
  }
  ASSIGN_OR_RETURN(
      StartRequest start,
      StartFromProto(message_.start(), backend_->clock()->Now() + left));
  if (start.sampling.n < 1 || start.sampling.n > request::kMaxSamples) {
    return request::InvalidField(
        "n", absl::StrCat(start.sampling.n, ", expected 1 to ",
                          request::kMaxSamples));
  }
  const std::weak_ptr<DecodeCall> weak = weak_from_this();
  auto output = std::make_shared<RequestOutput>(
      RequestOutputOptions{.samples = start.sampling.n,
                           .logprobs = start.logprobs,
                           .vocabulary = backend_->vocabulary(),
                           .clock = backend_->clock(),
                           .on_ready =
                               [weak] {
                                 if (const auto call = weak.lock())
                                   call->WriteNext();
                               },
                           .on_cut =
                               [weak] {
                                 if (const auto call = weak.lock()) call->Cut();
                               }});
  message_.Clear();  // the prompt is in `start`
  {
    MutexLock lock(&mu_);
    if (finished_) return Cancelled("the call is over");
    output_ = output;
  }
  const absl::Status status = backend_->Start(std::move(start), output);
  bool finished = false;
  {
    MutexLock lock(&mu_);
    finished = finished_;
    if (!status.ok()) output_.reset();
  }
  // A cancel that came in between was posted before the start that it means.
  if (status.ok() && finished) {
    backend_->Cancel(output, Cancelled("the router cancelled the call"));
  }
  return status;
}

void DecodeCall::WriteNext() {
  MutexLock lock(&mu_);
  if (writing_ || finished_ || context_ == nullptr || output_ == nullptr) {
    return;
  }
  std::optional<OutputEvent> event = output_->Take();
  if (!event.has_value()) return;
  if (const auto* const end = std::get_if<EndEvent>(&*event)) {
    EndWith(end->status);
    return;
  }
  EventToProto(*event, &response_);
  writing_ = true;
  StartWrite(&response_);
}

void DecodeCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (output_ != nullptr) output_->Written();
  }
  // A failed write means that the call is cancelled: OnCancel drops the
  // request, and the output ends with it.
  if (ok) WriteNext();
}

void DecodeCall::OnCancel() {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mu_);
    output = output_;
    // Nobody reads the status any more, but gRPC wants one before OnDone.
    EndWith(Cancelled("the call was cancelled"));
  }
  if (output != nullptr) {
    backend_->Cancel(output, Cancelled("the router cancelled the call"));
  }
}

void DecodeCall::Cut() {
  MutexLock lock(&mu_);
  if (context_ != nullptr) context_->TryCancel();
}

void DecodeCall::OnDone() {
  std::shared_ptr<DecodeCall> self;
  {
    MutexLock lock(&mu_);
    context_ = nullptr;
    finished_ = true;
    if (output_ != nullptr) output_->Close();
    self = std::move(self_);
  }
}

}  // namespace baton::decode_worker
