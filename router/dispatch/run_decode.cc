// The decode leg's part of Run.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/request/request.h"
#include "router/dispatch/refusal.h"
#include "router/dispatch/run.h"

namespace baton::router::dispatch {

using metrics::RetryReason;
using request::ErrorReason;

void Run::StartDecodeLeg() {
  if (first_decode_.empty()) first_decode_ = decode_worker_.name;
  const int64_t leg = ++decode_leg_;
  Enter(RunState::kReserving, context_->options.answer_timeout);
  decode_ = context_->legs->StartDecode(
      decode_worker_,
      {.request = spec_.id,
       .handoff = handoff_,
       .prompt_ids = spec_.prompt_ids,
       .prompt_hash = spec_.prompt_hash,
       .sampling = spec_.sampling,
       .logprobs = spec_.logprobs,
       .deadline = spec_.deadline},
      [self = shared_from_this(), leg](DecodeEvent event) {
        self->strand_.Post([self, leg, event = std::move(event)] {
          self->OnDecode(leg, event);
        });
      });
  read_outstanding_ = false;
  ReadDecode();
}

void Run::DropDecode() {
  ++decode_leg_;
  decode_ = nullptr;  // cancels
  if (decode_counted_) {
    decode_counted_ = false;
    context_->registry->RemoveInFlight(decode_worker_, handoff_,
                                       registry::WorkerRole::kDecode);
  }
}

// Back-pressure: nothing is read from decode while the client's write is out,
// so at most one event per request is in memory here.
void Run::ReadDecode() {
  if (decode_ == nullptr || read_outstanding_ || write_outstanding_) return;
  read_outstanding_ = true;
  decode_->Next();
}

void Run::OnDecode(int64_t leg, const DecodeEvent& event) {
  if (leg != decode_leg_ || state_ == RunState::kEnded) return;
  if (const auto* ended = std::get_if<LegEnded>(&event)) {
    OnDecodeEnded(ended->status);
    return;
  }
  read_outstanding_ = false;
  std::visit(
      [this](const auto& e) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(e)>, LegEnded>) {
          On(e);
        }
      },
      event);
  ReadDecode();
}

void Run::ProtocolError(absl::string_view what) {
  ReportBug("router.dispatch", what);
  End(request::MakeError(absl::StatusCode::kInternal, what,
                         {.reason = ErrorReason::kBug}));
}

void Run::On(const DecodeReserved& event) {
  if (state_ != RunState::kReserving) {
    ProtocolError("the decode worker reserved twice");
    return;
  }
  ticket_ = event.ticket;
  context_->queue->Settled(entry_);
  const absl::Time now = Now();
  Enter(RunState::kTransferring,
        std::max(context_->options.progress_timeout, turn_by_ - now));
  prefill_->Attach(ticket_);
  if (started_sent_) return;  // a second pair: the client knows the request
  started_sent_ = true;
  context_->metrics->PromptTokens(spec_.prompt_tokens());
  Send(ClientStarted{first_prefill_, first_decode_});
}

void Run::On(const DecodeReticketed& event) {
  if (event.already_committed) {
    // Committed is sent before this message, so it has been handled.
    if (state_ == RunState::kReticketing) Committed();
    return;
  }
  if (state_ != RunState::kReticketing) {
    ProtocolError("the decode worker promised an attempt nobody asked for");
    return;
  }
  ++attempt_;
  ticket_ = event.ticket;
  ReplacePrefill();
}

void Run::On(const DecodeCommitted& event) {
  if ((state_ != RunState::kTransferring && state_ != RunState::kReticketing) ||
      event.attempt != attempt_) {
    ProtocolError(absl::StrCat("attempt ", event.attempt,
                               " was committed while ", RunStateName(state_),
                               " attempt ", attempt_));
    return;
  }
  commit_wait_ = event.commit;
  Committed();
}

void Run::Committed() {
  committed_at_ = Now();
  // From here on the prefill leg no longer matters (hazards.md P6).
  if (prefill_ != nullptr) prefill_->LetGo();
  DropPrefill();
  Enter(RunState::kCommitted, context_->options.output_timeout);
}

void Run::CountTokens(const DecodeTokens& event) {
  const auto count = static_cast<int32_t>(event.token_ids.size());
  if (count == 0) return;
  const absl::Time now = Now();
  context_->metrics->GenerationTokens(count);
  if (first_token_at_ == absl::InfinitePast()) {
    first_token_at_ = now;
    context_->metrics->FirstToken(now - spec_.accepted);
  }
  const auto index = static_cast<size_t>(event.index);
  if (sample_tokens_[index] > 0) {
    context_->metrics->LaterTokens(now - last_output_[index], count);
  } else if (count > 1) {
    context_->metrics->LaterTokens(absl::ZeroDuration(), count - 1);
  }
  last_output_[index] = now;
  sample_tokens_[index] += count;
}

void Run::On(const DecodeTokens& event) {
  if (state_ != RunState::kCommitted && state_ != RunState::kStreaming) {
    ProtocolError(absl::StrCat("output came while ", RunStateName(state_)));
    return;
  }
  if (const absl::Status check = ledger_.CheckTokens(event); !check.ok()) {
    ProtocolError(check.message());
    return;
  }
  CountTokens(event);
  Enter(RunState::kStreaming, context_->options.output_timeout);
  // Nothing that the client asked for: no event (its numbers have no gaps).
  if (event.text.empty() && !spec_.return_token_ids && event.logprobs.empty()) {
    return;
  }
  ClientDelta delta;
  delta.index = event.index;
  delta.sequence = client_events_[static_cast<size_t>(event.index)]++;
  delta.text = event.text;
  if (spec_.return_token_ids) delta.token_ids = event.token_ids;
  delta.logprobs = event.logprobs;
  Send(std::move(delta));
}

void Run::On(const DecodeSampleFinished& event) {
  if (state_ != RunState::kCommitted && state_ != RunState::kStreaming) {
    ProtocolError(absl::StrCat("a sample ended while ", RunStateName(state_)));
    return;
  }
  if (const absl::Status check = ledger_.CheckFinished(event); !check.ok()) {
    ProtocolError(check.message());
    return;
  }
  switch (event.reason) {
    case request::FinishReason::kError:
      End(request::MakeError(absl::StatusCode::kInternal,
                             absl::StrCat("sample ", event.index, " failed on ",
                                          decode_worker_.name),
                             {.reason = ErrorReason::kBug}));
      return;
    case request::FinishReason::kCancelled:
      End(request::MakeError(
          absl::StatusCode::kCancelled,
          absl::StrCat("sample ", event.index, " was cancelled on ",
                       decode_worker_.name),
          {.reason = ErrorReason::kCancelled}));
      return;
    case request::FinishReason::kStop:
    case request::FinishReason::kLength:
      break;
  }
  Enter(RunState::kStreaming, context_->options.output_timeout);
  Send(ClientFinished{.index = event.index,
                      .reason = event.reason,
                      .prompt_tokens = spec_.prompt_tokens(),
                      .output_tokens = event.output_tokens,
                      .timeline = MakeTimeline()});
}

void Run::On(const DecodeHandoffFailed& event) {
  // Of an attempt that was already given up.
  if (event.attempt != attempt_ || state_ == RunState::kReticketing) return;
  if (state_ != RunState::kTransferring && state_ != RunState::kReadmitting) {
    ProtocolError(absl::StrCat("attempt ", event.attempt, " failed while ",
                               RunStateName(state_)));
    return;
  }
  const bool rejected = event.reason == ErrorReason::kHandoffRejected ||
                        event.reason == ErrorReason::kMismatch;
  LosePrefill(request::MakeError(rejected ? absl::StatusCode::kDataLoss
                                          : absl::StatusCode::kAborted,
                                 event.message, {.reason = event.reason}),
              RetryReason::kHandoffFailed);
}

void Run::OnDecodeEnded(const absl::Status& status) {
  decode_->LetGo();
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    End(DeadlineError());
    return;
  }
  if (status.ok()) {
    ProtocolError(absl::StrCat("the decode worker ended the call while ",
                               RunStateName(state_), ", ",
                               ledger_.num_finished(), " of ",
                               ledger_.num_samples(), " samples finished"));
    return;
  }
  if (state_ == RunState::kReserving) {
    if (IsRefusal(status)) {
      DecodeRefused();
      return;
    }
    if (status.code() == absl::StatusCode::kInvalidArgument) {
      End(status);
      return;
    }
  }
  if (IsWorkerFault(status)) context_->registry->ReportFailure(decode_worker_);
  LoseDecode(status);
}

void Run::DecodeRefused() {
  context_->registry->ReportRefusal(decode_worker_);
  exclusions_.refused.insert(decode_worker_.name);
  context_->metrics->Retry(RetryReason::kDecodeRefused);
  // Released before anything else is asked for: a reservation is never waited
  // for while something is held (hazards.md P9).
  DropDecode();
  DropPrefill();
  Place();
}

void Run::LoseDecode(const absl::Status& cause) {
  LogWarning("decode_leg_failed", {{"request", ToHex(spec_.id)},
                                   {"worker", decode_worker_.name},
                                   {"state", RunStateName(state_)},
                                   {"cause", cause.ToString()}});
  if (state_ == RunState::kStreaming) {
    const ErrorReason reason = request::InfoOf(cause).reason;
    if (reason == ErrorReason::kSlowReader) {
      End(request::MakeError(absl::StatusCode::kCancelled, cause.message(),
                             {.reason = reason}));
      return;
    }
    End(request::MakeError(
        absl::StatusCode::kUnavailable,
        absl::StrCat(
            "decode worker '", decode_worker_.name,
            "' was lost after output had been sent: ", cause.message()),
        {.reason = reason == ErrorReason::kDraining
                       ? reason
                       : ErrorReason::kWorkerLost}));
    return;
  }
  // A prefill that lost its receiver, and the receiver's own end, are one
  // failure seen twice.
  if (state_ != RunState::kReticketing) ++failures_;
  exclusions_.failed.insert(decode_worker_.name);
  if (failures_ >= context_->options.max_attempts) {
    End(Exhausted(cause));
    return;
  }
  context_->metrics->Retry(RetryReason::kDecodeLost);
  DropDecode();
  DropPrefill();
  Place();
}

}  // namespace baton::router::dispatch
