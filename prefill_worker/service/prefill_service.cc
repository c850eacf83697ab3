#include "prefill_worker/service/prefill_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault_point.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/handoff/ticket_proto.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"

namespace baton::prefill_worker {
namespace {

using request::ErrorReason;
using request::MakeError;

absl::StatusOr<PromptRequest> PromptFromProto(
    const v1::PrefillRequest::Admit& admit) {
  PromptRequest out;
  if (!admit.request_id().empty()) {
    auto id = FromBytes<RequestId>(admit.request_id());
    if (!id.ok()) {
      return request::InvalidField("request_id", id.status().message());
    }
    out.request = *id;
  }
  const auto key = rpc::HandoffFromProto(admit.handoff());
  if (!key.ok()) {
    return request::InvalidField("handoff", key.status().message());
  }
  out.handoff = key->handoff;
  out.attempt = key->attempt;
  out.prompt_ids.assign(admit.prompt_ids().begin(), admit.prompt_ids().end());
  ASSIGN_OR_RETURN(out.prompt_hash,
                   rpc::DigestFromBytes(admit.prompt_hash(), "prompt_hash"));
  ASSIGN_OR_RETURN(out.model_digest,
                   rpc::DigestFromBytes(admit.model_digest(), "model_digest"));
  return out;
}

// One call. gRPC keeps the reactor until OnDone; the engine holds the observer
// for as long as the prompt lives, so both sides share ownership.
//
// Lock: mu_ guards all state and is never held over a call into gRPC that can
// call back on this thread, nor over one into the intake.
class PrefillCall final
    : public grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillResponse>,
      public PromptObserver,
      public std::enable_shared_from_this<PrefillCall> {
 public:
  PrefillCall(PromptIntake* intake, Clock* clock,
              grpc::CallbackServerContext* context)
      : intake_(intake), clock_(clock), context_(context) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&read_);
  }

  // gRPC's side.
  void OnReadDone(bool ok) override {
    if (!ok) {
      // The router closed its half, or the call is over. Without a prompt
      // nothing can follow; with one, its answers still do.
      bool admitted = false;
      {
        MutexLock lock(&mu_);
        admitted = admitted_;
      }
      if (!admitted) {
        EndCall(request::InvalidField("message", "missing, expected Admit"));
      }
      return;
    }
    const absl::Status status = Handle();
    if (!status.ok()) {
      intake_->Cancel(shared_from_this(), status);
      EndCall(status);
      return;
    }
    StartRead(&read_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {
      queue_.clear();  // OnCancel follows and ends the prompt
    }
    WriteNext();
  }

  void OnCancel() override {
    const absl::Status status = MakeError(absl::StatusCode::kCancelled,
                                          "the caller cancelled the prefill",
                                          {.reason = ErrorReason::kCancelled});
    // Also for a prompt that is still in the mailbox: notices come after it.
    intake_->Cancel(shared_from_this(), status);
    // Not by way of the engine: a stuck step must not keep the call alive.
    EndCall(status);
  }

  void OnDone() override {
    // May delete this.
    const std::shared_ptr<PrefillCall> self = std::move(self_);
  }

  // The engine's side.
  void OnAdmitted(absl::Duration eta, int64_t backlog_tokens) override {
    v1::PrefillResponse response;
    response.mutable_admitted()->set_eta_ms(absl::ToInt64Milliseconds(eta));
    response.mutable_admitted()->set_backlog_tokens(backlog_tokens);
    Send(std::move(response));
  }
  void OnStarted() override {
    v1::PrefillResponse response;
    response.mutable_started();
    Send(std::move(response));
  }
  void OnProgress(int32_t processed_tokens) override {
    v1::PrefillResponse response;
    response.mutable_progress()->set_processed_tokens(processed_tokens);
    Send(std::move(response));
  }
  void OnSealed(int64_t prefill_us) override {
    v1::PrefillResponse response;
    response.mutable_sealed()->set_prefill_us(prefill_us);
    Send(std::move(response));
  }
  void OnVerdict(bool committed) override {
    v1::PrefillResponse response;
    response.mutable_verdict()->set_committed(committed);
    Send(std::move(response));
  }
  void OnFinished(const absl::Status& status) override { EndCall(status); }

 private:
  absl::Status Handle() {
    bool admitted = false;
    {
      MutexLock lock(&mu_);
      admitted = admitted_;
    }
    switch (read_.message_case()) {
      case v1::PrefillRequest::kAdmit: {
        if (admitted) {
          return request::InvalidField("admit", "a second Admit on one call");
        }
        ASSIGN_OR_RETURN(PromptRequest prompt, PromptFromProto(read_.admit()));
        // The caller may have been long gone when the message was read.
        prompt.deadline = clock_->Now() + rpc::TimeLeft(*context_);
        {
          MutexLock lock(&mu_);
          admitted_ = true;
        }
        if (!intake_->Admit(std::move(prompt), shared_from_this())) {
          return MakeError(
              absl::StatusCode::kUnavailable,
              "the worker has stopped or its mailbox is full",
              {.reason = ErrorReason::kOverloaded, .retry_delay_ms = 1'000});
        }
        return absl::OkStatus();
      }
      case v1::PrefillRequest::kAttach: {
        if (!admitted) {
          return request::InvalidField("attach", "before Admit");
        }
        ASSIGN_OR_RETURN(handoff::Ticket ticket,
                         handoff::TicketFromProto(read_.attach().ticket()));
        intake_->Attach(shared_from_this(), std::move(ticket));
        return absl::OkStatus();
      }
      case v1::PrefillRequest::MESSAGE_NOT_SET:
        break;
    }
    return request::InvalidField("message",
                                 "missing, expected Admit or Attach");
  }

  void Send(v1::PrefillResponse response) {
    MutexLock lock(&mu_);
    if (final_.has_value()) {
      return;
    }
    // Progress that was not written yet is out of date.
    if (response.has_progress() && !queue_.empty() &&
        queue_.back().has_progress()) {
      queue_.back() = std::move(response);
    } else {
      queue_.push_back(std::move(response));
    }
    WriteNext();
  }

  void EndCall(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (final_.has_value()) {
      return;
    }
    final_ = status;
    if (absl::IsCancelled(status)) {
      queue_.clear();
    }
    WriteNext();
  }

  // Starts the next write, or the end after the last one.
  void WriteNext() BATON_REQUIRES(mu_) {
    if (writing_ || finished_) {
      return;
    }
    if (!queue_.empty()) {
      writing_ = true;
      writing_message_ = std::move(queue_.front());
      queue_.pop_front();
      StartWrite(&writing_message_);
    } else if (final_.has_value()) {
      finished_ = true;
      Finish(rpc::ToGrpc(*final_));
    }
  }

  PromptIntake* const intake_;
  Clock* const clock_;
  grpc::CallbackServerContext* const context_;
  v1::PrefillRequest read_;            // one read at a time
  std::shared_ptr<PrefillCall> self_;  // from Begin to OnDone

  Mutex mu_;
  bool admitted_ BATON_GUARDED_BY(mu_) = false;
  bool writing_ BATON_GUARDED_BY(mu_) = false;
  bool finished_ BATON_GUARDED_BY(mu_) = false;
  v1::PrefillResponse writing_message_;  // the outstanding write's
  std::deque<v1::PrefillResponse> queue_ BATON_GUARDED_BY(mu_);
  std::optional<absl::Status> final_ BATON_GUARDED_BY(mu_);
};

// Ends a call that came before the worker was ready.
class RefusedCall final
    : public grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillResponse> {
 public:
  RefusedCall() {
    Finish(rpc::ToGrpc(MakeError(
        absl::StatusCode::kUnavailable, "the worker is loading its model",
        {.reason = ErrorReason::kNoWorker, .retry_delay_ms = 1'000})));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillResponse>*
PrefillServiceImpl::Prefill(grpc::CallbackServerContext* context) {
  PromptIntake* const intake = intake_.load(std::memory_order_acquire);
  if (intake == nullptr) {
    return new RefusedCall;
  }
  const auto call = std::make_shared<PrefillCall>(intake, clock_, context);
  call->Begin();
  return call.get();
}

}  // namespace baton::prefill_worker
