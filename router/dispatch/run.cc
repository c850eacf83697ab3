#include "router/dispatch/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/request/request.h"

namespace baton::router::dispatch {
namespace {

using request::ErrorReason;

// A client's deadline and ours fire within a moment of each other.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

}  // namespace

absl::Status Run::DeadlineError() const {
  return request::MakeError(absl::StatusCode::kDeadlineExceeded,
                            absl::StrCat("the request's deadline passed while ",
                                         RunStateName(state_)),
                            {.reason = ErrorReason::kDeadline});
}

absl::string_view RunStateName(RunState state) {
  switch (state) {
    case RunState::kQueued:
      return "queued";
    case RunState::kAdmitting:
      return "admitting";
    case RunState::kAdmitted:
      return "admitted";
    case RunState::kReserving:
      return "reserving";
    case RunState::kTransferring:
      return "transferring";
    case RunState::kReticketing:
      return "reticketing";
    case RunState::kReadmitting:
      return "readmitting";
    case RunState::kCommitted:
      return "committed";
    case RunState::kStreaming:
      return "streaming";
    case RunState::kEnded:
      return "ended";
  }
  return "ended";
}

absl::Status Overloaded(absl::string_view message, const RunOptions& options,
                        Random* random) {
  // Jitter keeps refused clients, and routers, from coming back together.
  const absl::Duration delay = options.retry_delay * (1.0 + random->Uniform());
  return request::MakeError(
      absl::StatusCode::kResourceExhausted, message,
      {.reason = ErrorReason::kOverloaded,
       .retry_delay_ms = absl::ToInt64Milliseconds(delay)});
}

std::shared_ptr<Run> Run::Create(const RunContext* context, RequestSpec spec,
                                 ClientSink* sink) {
  CHECK(spec.deadline < absl::InfiniteFuture()) << "a request has a deadline";
  return std::shared_ptr<Run>(new Run(context, std::move(spec), sink));
}

Run::Run(const RunContext* context, RequestSpec spec, ClientSink* sink)
    : context_(context),
      spec_(std::move(spec)),
      sink_(sink),
      ledger_(spec_.sampling.n),
      client_events_(static_cast<size_t>(spec_.sampling.n)),
      sample_tokens_(static_cast<size_t>(spec_.sampling.n)),
      last_output_(static_cast<size_t>(spec_.sampling.n)) {}

void Run::Post(void (Run::*event)()) {
  strand_.Post([self = shared_from_this(), event] { (self.get()->*event)(); });
}

void Run::Start() { Post(&Run::DoStart); }

void Run::Cancel(absl::Status why) {
  strand_.Post([self = shared_from_this(), why = std::move(why)] {
    self->DoCancel(why);
  });
}

void Run::ClientGone() {
  strand_.Post([self = shared_from_this()] {
    if (self->Now() + kDeadlineSlack >= self->spec_.deadline) {
      self->DoCancel(self->DeadlineError());
    } else {
      self->DoCancel(request::MakeError(absl::StatusCode::kCancelled,
                                        "the client cancelled the call",
                                        {.reason = ErrorReason::kCancelled}));
    }
  });
}

void Run::OnWriteDone(bool ok) {
  strand_.Post([self = shared_from_this(), ok] { self->DoWriteDone(ok); });
}

// --- Queue and placement ----------------------------------------------------

void Run::DoStart() {
  if (state_ == RunState::kEnded) return;
  entry_ = std::make_shared<AdmissionQueue::Entry>();
  // Weak: a waiting entry does not keep an ended run.
  entry_->granted = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Post(&Run::OnGranted);
  };
  queue_deadline_ = spec_.accepted + context_->options.queue_timeout;
  state_deadline_ = queue_deadline_;
  context_->queue->Enter(entry_);
  Arm();
}

void Run::OnGranted() {
  if (state_ == RunState::kQueued) Place();
}

policy::PlacementQuery Run::Query() const {
  return {.positions = spec_.positions(),
          .prompt_tokens = spec_.prompt_tokens(),
          .pinned_prefill = spec_.pinned_prefill,
          .pinned_decode = spec_.pinned_decode};
}

void Run::Place() {
  const absl::StatusOr<policy::Pair> pair = policy::ChoosePair(
      *context_->registry->snapshot(), Query(), exclusions_, context_->random);
  if (!pair.ok()) {
    switch (request::InfoOf(pair.status()).reason) {
      case ErrorReason::kOverloaded:
        WaitForRoom();
        return;
      case ErrorReason::kNoWorker:
        End(request::MakeError(absl::StatusCode::kUnavailable,
                               pair.status().message(),
                               {.reason = ErrorReason::kNoWorker,
                                .retry_delay_ms = absl::ToInt64Milliseconds(
                                    context_->options.retry_delay *
                                    (1.0 + context_->random->Uniform()))}));
        return;
      default:
        End(pair.status());
        return;
    }
  }
  // A new pair is a new hand-off: the old one may still be known to workers.
  handoff_ = HandoffId::Mint(context_->random);
  attempt_ = 1;
  decode_worker_ = pair->decode;
  context_->registry->AddInFlight(decode_worker_,
                                  {.handoff = handoff_,
                                   .role = registry::WorkerRole::kDecode,
                                   .prompt_tokens = spec_.prompt_tokens(),
                                   .samples = spec_.sampling.n,
                                   .blocks = spec_.blocks()});
  decode_counted_ = true;
  StartPrefillLeg(pair->prefill, RunState::kAdmitting);
}

void Run::WaitForRoom() {
  exclusions_.refused.clear();
  if (Now() >= queue_deadline_) {
    End(Overloaded("no worker has capacity for this request now",
                   context_->options, context_->random));
    return;
  }
  state_ = RunState::kQueued;
  state_deadline_ = queue_deadline_;
  context_->queue->Requeue(entry_);
  Arm();
}

// --- Timers -----------------------------------------------------------------

void Run::Enter(RunState state, absl::Duration limit) {
  state_ = state;
  state_deadline_ = Now() + limit;
  if (state != RunState::kAdmitted) reserve_at_ = absl::InfiniteFuture();
  Arm();
}

void Run::Arm() {
  if (concluded_) return;
  absl::Time next =
      write_outstanding_ && !cut_ ? write_deadline_ : absl::InfiniteFuture();
  if (state_ != RunState::kEnded) {
    next = std::min({next, spec_.deadline, state_deadline_, reserve_at_});
  }
  // A timer that fires too early re-arms itself; only an earlier one counts.
  if (next >= armed_for_) return;
  context_->timers->Cancel(timer_);
  armed_for_ = next;
  timer_ = context_->timers->Schedule(next, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Post(&Run::OnTimer);
  });
}

void Run::OnTimer() {
  armed_for_ = absl::InfiniteFuture();
  const absl::Time now = Now();
  if (write_outstanding_ && !cut_ && now >= write_deadline_) {
    cut_ = true;
    const absl::Status slow = request::MakeError(
        absl::StatusCode::kCancelled,
        absl::StrCat(
            "the client did not read for ",
            absl::FormatDuration(context_->options.slow_reader_timeout)),
        {.reason = ErrorReason::kSlowReader});
    // An error that came first stays; a success was not delivered.
    if (state_ != RunState::kEnded) {
      End(slow);
    } else if (final_.ok()) {
      final_ = slow;
    }
    sink_->Cut(final_);
  } else if (state_ != RunState::kEnded) {
    if (now >= spec_.deadline) {
      End(DeadlineError());
    } else if (state_ == RunState::kAdmitted && now >= reserve_at_) {
      StartDecodeLeg();
    } else if (now >= state_deadline_) {
      OnStateTimeout();
    }
  }
  Arm();
}

void Run::OnStateTimeout() {
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("no answer in time while ", RunStateName(state_)));
  // Decode is not read while the client does not read: the write's own deadline
  // judges that.
  if (write_outstanding_) {
    state_deadline_ = write_deadline_ + context_->options.answer_timeout;
    return;
  }
  switch (state_) {
    case RunState::kQueued:
      End(Overloaded(
          absl::StrCat("no capacity within ",
                       absl::FormatDuration(context_->options.queue_timeout)),
          context_->options, context_->random));
      return;
    case RunState::kAdmitting:
    case RunState::kAdmitted:
    case RunState::kReadmitting:
    case RunState::kTransferring:
      context_->registry->ReportFailure(prefill_worker_);
      LosePrefill(late, metrics::RetryReason::kPrefillLost);
      return;
    case RunState::kReserving:
    case RunState::kReticketing:
    case RunState::kCommitted:
    case RunState::kStreaming:
      context_->registry->ReportFailure(decode_worker_);
      LoseDecode(late);
      return;
    case RunState::kEnded:
      return;
  }
}

// --- Client -----------------------------------------------------------------

void Run::Send(ClientEvent event) {
  CHECK(!write_outstanding_) << "one write at a time";
  write_outstanding_ = true;
  write_deadline_ = Now() + context_->options.slow_reader_timeout;
  sink_->Write(event);
  Arm();
}

void Run::DoWriteDone(bool ok) {
  write_outstanding_ = false;
  write_deadline_ = absl::InfiniteFuture();
  if (!ok && !cut_) {
    const absl::Status gone = request::MakeError(
        absl::StatusCode::kCancelled, "the client's stream broke",
        {.reason = ErrorReason::kCancelled});
    if (state_ == RunState::kEnded && final_.ok()) final_ = gone;
    End(gone);
  }
  if (state_ == RunState::kEnded) {
    Conclude();
    return;
  }
  if (ledger_.complete()) {
    End(absl::OkStatus());
    return;
  }
  // Time that the client took is not the worker's.
  if (state_ == RunState::kCommitted || state_ == RunState::kStreaming) {
    state_deadline_ = Now() + context_->options.output_timeout;
  }
  ReadDecode();
}

void Run::DoCancel(const absl::Status& why) { End(why); }

// --- End --------------------------------------------------------------------

absl::Status Run::Exhausted(const absl::Status& cause) const {
  const ErrorReason reason = request::InfoOf(cause).reason;
  const std::string message =
      absl::StrCat(failures_, " of ", context_->options.max_attempts,
                   " attempts failed; the last: ", cause.message());
  // Either leg may be the first to say it, with a code of its own.
  if (cause.code() == absl::StatusCode::kDataLoss ||
      reason == ErrorReason::kHandoffRejected ||
      reason == ErrorReason::kMismatch) {
    return request::MakeError(absl::StatusCode::kDataLoss, message,
                              {.reason = reason});
  }
  return request::MakeError(absl::StatusCode::kInternal, message,
                            {.reason = ErrorReason::kWorkerLost});
}

void Run::End(const absl::Status& status) {
  if (state_ == RunState::kEnded) return;
  state_ = RunState::kEnded;
  final_ = status;
  DropPrefill();
  if (status.ok() && decode_ != nullptr) decode_->LetGo();
  DropDecode();
  if (write_outstanding_) {
    Arm();  // until the write ends or is cut
  } else {
    Conclude();
  }
}

void Run::Conclude() {
  if (concluded_) return;
  concluded_ = true;
  context_->timers->Cancel(timer_);
  context_->queue->Leave(entry_);
  const Timeline timeline = MakeTimeline();
  context_->metrics->RequestEnded(final_, Now() - spec_.accepted);
  LogInfo("request_ended", {{"request", ToHex(spec_.id)},
                            {"label", spec_.label},
                            {"outcome", metrics::OutcomeOf(final_)},
                            {"code", absl::StatusCodeToString(final_.code())},
                            {"message", final_.message()},
                            {"prompt_tokens", spec_.prompt_tokens()},
                            {"output_tokens", ledger_.output_tokens()},
                            {"n", spec_.sampling.n},
                            {"prefill", prefill_worker_.name},
                            {"decode", decode_worker_.name},
                            {"failures", failures_},
                            {"queue_us", timeline.queue_us},
                            {"prefill_us", timeline.prefill_us},
                            {"transfer_us", timeline.transfer_us},
                            {"first_decode_us", timeline.first_decode_us},
                            {"first_token_us", timeline.first_token_us},
                            {"total_us", timeline.total_us}});
  if (context_->on_end) context_->on_end(spec_.id);
  sink_->Finish(final_);
}

Timeline Run::MakeTimeline() const {
  Timeline out;
  out.total_us = absl::ToInt64Microseconds(Now() - spec_.accepted);
  if (admitted_at_ == absl::InfinitePast()) return out;
  out.queue_us = absl::ToInt64Microseconds(admitted_at_ - spec_.accepted);
  if (committed_at_ == absl::InfinitePast()) return out;
  // Sealed and Committed travel on two streams: when Sealed is the later one,
  // decode's own account of its wait splits the time.
  const absl::Duration both = committed_at_ - admitted_at_;
  const absl::Duration prefill = sealed_prefill_ < absl::InfiniteDuration()
                                     ? std::min(sealed_prefill_, both)
                                     : both - std::min(commit_wait_, both);
  out.prefill_us = absl::ToInt64Microseconds(prefill);
  out.transfer_us = absl::ToInt64Microseconds(both) - out.prefill_us;
  if (first_token_at_ == absl::InfinitePast()) return out;
  out.first_token_us =
      absl::ToInt64Microseconds(first_token_at_ - spec_.accepted);
  out.first_decode_us =
      out.first_token_us - out.queue_us - out.prefill_us - out.transfer_us;
  return out;
}

}  // namespace baton::router::dispatch
