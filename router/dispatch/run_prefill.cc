// The prefill leg's part of Run.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/request/request.h"
#include "router/dispatch/refusal.h"
#include "router/dispatch/run.h"

namespace baton::router::dispatch {

using metrics::RetryReason;

void Run::StartPrefillLeg(const registry::WorkerRef& worker, RunState state) {
  prefill_worker_ = worker;
  if (first_prefill_.empty()) first_prefill_ = worker.name;
  context_->registry->AddInFlight(prefill_worker_,
                                  {.handoff = handoff_,
                                   .role = registry::WorkerRole::kPrefill,
                                   .prompt_tokens = spec_.prompt_tokens()});
  prefill_counted_ = true;
  sealed_prefill_ = absl::InfiniteDuration();
  turn_by_ = absl::InfinitePast();
  const int64_t leg = ++prefill_leg_;
  Enter(state, context_->options.answer_timeout);
  prefill_ = context_->legs->StartPrefill(
      prefill_worker_,
      {.request = spec_.id,
       .handoff = handoff_,
       .attempt = attempt_,
       .prompt_ids = spec_.prompt_ids,
       .prompt_hash = spec_.prompt_hash,
       .deadline = spec_.deadline},
      [self = shared_from_this(), leg](PrefillEvent event) {
        self->strand_.Post([self, leg, event = std::move(event)] {
          self->OnPrefill(leg, event);
        });
      });
}

void Run::DropPrefill() {
  ++prefill_leg_;      // later events are of no leg
  prefill_ = nullptr;  // cancels
  if (prefill_counted_) {
    prefill_counted_ = false;
    context_->registry->RemoveInFlight(prefill_worker_, handoff_,
                                       registry::WorkerRole::kPrefill);
  }
}

void Run::OnPrefill(int64_t leg, const PrefillEvent& event) {
  if (leg != prefill_leg_ || state_ == RunState::kEnded) return;
  if (const auto* ended = std::get_if<LegEnded>(&event)) {
    OnPrefillEnded(ended->status);
    return;
  }
  std::visit(
      [this](const auto& e) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(e)>, LegEnded>) {
          On(e);
        }
      },
      event);
}

void Run::On(const PrefillAdmitted& event) {
  if (state_ != RunState::kAdmitting && state_ != RunState::kReadmitting) {
    ProtocolError("the prefill worker admitted a prompt twice");
    return;
  }
  admitted_at_ = Now();
  if (!queue_observed_) {
    queue_observed_ = true;
    context_->metrics->Queued(admitted_at_ - spec_.accepted);
  }
  // An estimate may be wrong by a factor before the prompt counts as stuck.
  const absl::Duration patience =
      4 * event.eta + context_->options.progress_timeout;
  turn_by_ = admitted_at_ + patience;
  if (state_ == RunState::kReadmitting) {
    Enter(RunState::kTransferring, patience);
    prefill_->Attach(ticket_);
    return;
  }
  if (event.eta <= context_->options.reserve_ahead) {
    StartDecodeLeg();
    return;
  }
  reserve_at_ = admitted_at_ + event.eta - context_->options.reserve_ahead;
  Enter(RunState::kAdmitted, patience);
  // The wait is prefill's; others may look for room meanwhile.
  context_->queue->Settled(entry_);
}

void Run::On(const PrefillStarted& /*event*/) {
  turn_by_ = absl::InfinitePast();
  if (state_ == RunState::kAdmitted) {
    StartDecodeLeg();
  } else if (state_ == RunState::kTransferring) {
    state_deadline_ = Now() + context_->options.progress_timeout;
    Arm();
  }
}

void Run::On(const PrefillProgress& /*event*/) { On(PrefillStarted{}); }

void Run::On(const PrefillSealed& event) {
  sealed_prefill_ = event.prefill;
  On(PrefillStarted{});
}

// The decode leg says the same and with more right: Committed or HandoffFailed.
void Run::On(const PrefillVerdict& /*event*/) {}

void Run::OnPrefillEnded(const absl::Status& status) {
  prefill_->LetGo();
  DropPrefill();
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    End(DeadlineError());
    return;
  }
  switch (state_) {
    case RunState::kAdmitting:
    case RunState::kReadmitting:
      if (IsRefusal(status)) {
        PrefillRefused(status);
        return;
      }
      if (status.code() == absl::StatusCode::kInvalidArgument) {
        End(status);
        return;
      }
      break;
    case RunState::kTransferring:
      if (status.ok()) {
        // It saw the commit; decode's word is on its way.
        Enter(state_, context_->options.progress_timeout);
        return;
      }
      break;
    default:
      break;
  }
  if (IsWorkerFault(status)) {
    context_->registry->ReportFailure(prefill_worker_);
  }
  const bool rejected = status.code() == absl::StatusCode::kDataLoss ||
                        status.code() == absl::StatusCode::kAborted;
  LosePrefill(
      status.ok()
          ? absl::InternalError("the prefill worker ended without a hand-off")
          : status,
      rejected ? RetryReason::kHandoffFailed : RetryReason::kPrefillLost);
}

void Run::PrefillRefused(const absl::Status& /*status*/) {
  context_->registry->ReportRefusal(prefill_worker_);
  exclusions_.refused.insert(prefill_worker_.name);
  context_->metrics->Retry(RetryReason::kPrefillRefused);
  if (state_ == RunState::kReadmitting) {
    ReplacePrefill();
  } else {
    DropDecode();
    Place();
  }
}

void Run::LosePrefill(const absl::Status& cause, RetryReason reason) {
  DropPrefill();
  ++failures_;
  exclusions_.failed.insert(prefill_worker_.name);
  LogWarning("prefill_leg_failed", {{"request", ToHex(spec_.id)},
                                    {"worker", prefill_worker_.name},
                                    {"attempt", attempt_},
                                    {"state", RunStateName(state_)},
                                    {"cause", cause.ToString()}});
  if (failures_ >= context_->options.max_attempts) {
    End(Exhausted(cause));
    return;
  }
  context_->metrics->Retry(reason);
  if (state_ == RunState::kTransferring || state_ == RunState::kReadmitting) {
    // The next prefill starts only after Reticketed: until then the receiver
    // could still take rows of this attempt (hazards.md P2).
    Enter(RunState::kReticketing, context_->options.answer_timeout);
    decode_->Reticket(attempt_ + 1);
    return;
  }
  DropDecode();
  Place();
}

void Run::ReplacePrefill() {
  const absl::StatusOr<registry::WorkerRef> worker = policy::ChoosePrefill(
      *context_->registry->snapshot(), Query(), exclusions_, context_->random);
  if (!worker.ok()) {
    if (request::InfoOf(worker.status()).reason ==
        request::ErrorReason::kOverloaded) {
      End(Overloaded("the prefill worker was lost and no other has capacity",
                     context_->options, context_->random));
    } else {
      End(worker.status());
    }
    return;
  }
  StartPrefillLeg(*worker, RunState::kReadmitting);
}

}  // namespace baton::router::dispatch
