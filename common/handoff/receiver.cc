#include "common/handoff/receiver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/handoff/receiver_impl.h"
#include "common/handoff/verify.h"

namespace baton::handoff {

namespace receiver_internal {

namespace {

using request::ErrorReason;
using transfer::Verdict;
using transfer::VerdictKind;

// A bound on memory, not a policy: far more than a worker ends in the life of
// one tombstone.
constexpr size_t kMaxTombstones = 1 << 16;

}  // namespace

absl::string_view StateName(State state) {
  switch (state) {
    case State::kReserved:
      return "reserved";
    case State::kReceiving:
      return "receiving";
    case State::kSealed:
      return "sealed";
    case State::kVerified:
      return "verified";
    case State::kQuiescing:
      return "quiescing";
  }
  return "";
}

ReceiverImpl::ReceiverImpl(ReceiverOptions options)
    : options_(std::move(options)),
      format_hash_(options_.store->format().Hash()),
      verifier_("handoff-verify", [this] { RunVerifier(); }) {}

ReceiverImpl::~ReceiverImpl() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    verify_due_.SignalAll();
  }
  verifier_.Join();
  MutexLock lock(&mu_);
  for (const auto& session : sessions_) {
    if (!session->state.closed) {
      ReportBug("handoff.receiver", "destroyed while a link is up");
    }
  }
}

Ticket ReceiverImpl::MakeTicket(const Live& live) const {
  return {.handoff = live.expectation.handoff,
          .attempt = live.attempt,
          .receiver = options_.identity.worker,
          .receiver_incarnation = options_.identity.incarnation,
          .endpoints = options_.endpoints,
          .state_format_hash = format_hash_,
          .lease = live.lease_end - options_.clock->Now()};
}

void ReceiverImpl::ExtendLease(Live* live) {
  live->lease_end = std::min({options_.clock->Now() + options_.lease,
                              live->expectation.deadline,
                              live->reserved_at + options_.max_lifetime});
}

absl::StatusOr<Ticket> ReceiverImpl::Reserve(const Expectation& expectation) {
  // Before the lock: CompleteRows of every region is not constant time.
  auto live = std::make_unique<Live>();
  live->expectation = expectation;
  live->rows = std::make_unique<RowLedger>(options_.store->format(),
                                           expectation.prompt_tokens);
  MutexLock lock(&mu_);
  const absl::Time now = options_.clock->Now();
  DropOldTombstones(now);
  if (live_.contains(expectation.handoff) ||
      tombstones_.contains(expectation.handoff)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "hand-off ", ToHex(expectation.handoff), " exists or has ended"));
  }
  if (now >= expectation.deadline) {
    return request::MakeError(absl::StatusCode::kDeadlineExceeded,
                              "deadline passed before the reservation",
                              {.reason = ErrorReason::kDeadline});
  }
  live->reserved_at = now;
  ExtendLease(live.get());
  Ticket ticket = MakeTicket(*live);
  live_.emplace(expectation.handoff, std::move(live));
  return ticket;
}

absl::StatusOr<Ticket> ReceiverImpl::Reticket(HandoffId handoff,
                                              Attempt attempt) {
  Outbox out;
  absl::StatusOr<Ticket> ticket;
  bool pinned = false;
  {
    MutexLock lock(&mu_);
    const auto tombstone = tombstones_.find(handoff);
    const auto it = live_.find(handoff);
    if ((tombstone != tombstones_.end() && tombstone->second.committed) ||
        (it != live_.end() && it->second->committed)) {
      return absl::FailedPreconditionError(
          absl::StrCat("hand-off ", ToHex(handoff), " is committed"));
    }
    if (it == live_.end() || it->second->state == State::kQuiescing) {
      return absl::NotFoundError(
          absl::StrCat("hand-off ", ToHex(handoff), " is not reserved"));
    }
    Live* const live = it->second.get();
    if (attempt <= live->attempt) {
      return request::MakeError(
          absl::StatusCode::kAborted,
          absl::StrCat("attempt ", attempt, " of hand-off ", ToHex(handoff),
                       " is not newer than ", live->attempt),
          {.reason = ErrorReason::kStale});
    }
    if (attempt != live->attempt + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("attempt ", attempt, ", expected ", live->attempt + 1));
    }
    if (!live->voided) {
      Decide(live, VerdictKind::kRejected,
             request::MakeError(
                 absl::StatusCode::kAborted,
                 absl::StrCat("attempt ", attempt, " replaces ", live->attempt),
                 {.reason = ErrorReason::kStale}),
             &out);
    }
    live->attempt = attempt;
    live->processed_tokens = 0;
    live->voided = false;
    live->state = State::kReserved;
    live->link = nullptr;
    live->rows = std::make_unique<RowLedger>(options_.store->format(),
                                             live->expectation.prompt_tokens);
    // A scatter of the older attempt may be under way: the slot is reset after
    // it, and no segment of this attempt is Posted before.
    live->stale_pins += live->pins + 1;
    live->pins = 0;
    live->reset_slot = true;
    pinned = true;
    ExtendLease(live);
    ticket = MakeTicket(*live);
  }
  if (pinned) Unpin(handoff, attempt - 1, &out);
  Flush(&out);
  return ticket;
}

CommitResult ReceiverImpl::Commit(HandoffId handoff, Attempt attempt) {
  BATON_FAULT_POINT("handoff.before_commit");
  Outbox out;
  {
    MutexLock lock(&mu_);
    Live* const live = Current(handoff, attempt);
    if (live == nullptr || live->state != State::kVerified) {
      return CommitResult::kNotVerified;
    }
    Decide(live, VerdictKind::kCommitted, absl::OkStatus(), &out);
    live->committed = true;
    Quiesce(live, &out);
  }
  BATON_FAULT_POINT("handoff.before_verdict");
  if (BATON_FAULT("handoff.drop_verdict", "")) out.answers.clear();
  Flush(&out);
  return CommitResult::kCommitted;
}

void ReceiverImpl::Abort(HandoffId handoff, absl::string_view reason) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    const auto it = live_.find(handoff);
    if (it == live_.end() || it->second->state == State::kQuiescing) return;
    AbortLive(it->second.get(),
              request::MakeError(absl::StatusCode::kCancelled, reason,
                                 {.reason = ErrorReason::kCancelled}),
              &out);
  }
  Flush(&out);
}

std::vector<ReceiverEvent> ReceiverImpl::TakeEvents() {
  Outbox out;
  std::vector<ReceiverEvent> events;
  {
    MutexLock lock(&mu_);
    const absl::Time now = options_.clock->Now();
    std::vector<Live*> expired;
    for (const auto& [id, live] : live_) {
      if (live->state != State::kQuiescing && now >= live->lease_end) {
        expired.push_back(live.get());
      }
    }
    for (Live* const live : expired) {
      const bool lease = now < live->expectation.deadline;
      const absl::Status status = request::MakeError(
          absl::StatusCode::kDeadlineExceeded,
          lease ? "the lease ended without progress of the prefill"
                : "the request's deadline passed",
          {.reason =
               lease ? ErrorReason::kWorkerLost : ErrorReason::kDeadline});
      PushEvent({.kind = ReceiverEventKind::kExpired,
                 .handoff = live->expectation.handoff,
                 .attempt = live->attempt,
                 .status = status},
                &out);
      AbortLive(live, status, &out);
    }
    DropOldTombstones(now);
    events.swap(events_);
  }
  out.wake = false;  // the caller is the one to be woken
  Flush(&out);
  return events;
}

ReceiverStats ReceiverImpl::stats() const {
  MutexLock lock(&mu_);
  ReceiverStats stats;
  for (const auto& [component, bytes] : bytes_) {
    stats.bytes.emplace_back(component, bytes);
  }
  std::map<State, int32_t> states;
  for (const State state : {State::kReserved, State::kReceiving, State::kSealed,
                            State::kVerified, State::kQuiescing}) {
    states[state] = 0;
  }
  for (const auto& [id, live] : live_) ++states[live->state];
  for (const auto& [state, count] : states) {
    stats.states.emplace_back(StateName(state), count);
  }
  stats.failures.assign(failures_.begin(), failures_.end());
  stats.segments_dropped = segments_dropped_;
  stats.tombstones = static_cast<int32_t>(tombstones_.size());
  for (const auto& session : sessions_) {
    if (!session->state.closed) ++stats.links_up;
  }
  return stats;
}

Live* ReceiverImpl::Current(HandoffId handoff, Attempt attempt) {
  const auto it = live_.find(handoff);
  if (it == live_.end()) return nullptr;
  Live* const live = it->second.get();
  const bool current = live->attempt == attempt && !live->voided &&
                       live->state != State::kQuiescing;
  return current ? live : nullptr;
}

void ReceiverImpl::PushEvent(ReceiverEvent event, Outbox* out) {
  events_.push_back(std::move(event));
  out->wake = true;
}

void ReceiverImpl::Decide(Live* live, VerdictKind kind,
                          const absl::Status& status, Outbox* out) {
  Verdict verdict{.handoff = live->expectation.handoff,
                  .attempt = live->attempt,
                  .kind = kind,
                  .reason = request::InfoOf(status).reason,
                  .message = std::string(status.message())};
  if (live->link != nullptr && !live->link->state.closed) {
    live->link->state.told.emplace(verdict.handoff, verdict.attempt);
    out->answers.emplace_back(live->link->state.link, verdict);
  }
  live->verdicts.push_back(std::move(verdict));
}

void ReceiverImpl::FailAttempt(Live* live, const absl::Status& status,
                               Outbox* out) {
  Decide(live, VerdictKind::kRejected, status, out);
  ++failures_[std::string(
      request::ErrorReasonName(request::InfoOf(status).reason))];
  live->voided = true;
  live->state = State::kReserved;
  live->link = nullptr;
  PushEvent({.kind = ReceiverEventKind::kFailed,
             .handoff = live->expectation.handoff,
             .attempt = live->attempt,
             .status = status},
            out);
}

void ReceiverImpl::AbortLive(Live* live, const absl::Status& status,
                             Outbox* out) {
  if (!live->voided) Decide(live, VerdictKind::kRejected, status, out);
  ++failures_[std::string(
      request::ErrorReasonName(request::InfoOf(status).reason))];
  Quiesce(live, out);
}

void ReceiverImpl::Quiesce(Live* live, Outbox* out) {
  live->state = State::kQuiescing;
  live->link = nullptr;
  if (live->pins + live->stale_pins > 0) return;
  const HandoffId handoff = live->expectation.handoff;
  PushEvent({.kind = ReceiverEventKind::kQuiet,
             .handoff = handoff,
             .attempt = live->attempt},
            out);
  tombstones_[handoff] = {std::move(live->verdicts), live->committed};
  tombstone_ends_.emplace_back(options_.clock->Now() + options_.tombstone,
                               handoff);
  live_.erase(handoff);
}

void ReceiverImpl::DropOldTombstones(absl::Time now) {
  while (!tombstone_ends_.empty() &&
         (tombstone_ends_.front().first <= now ||
          tombstone_ends_.size() > kMaxTombstones)) {
    tombstones_.erase(tombstone_ends_.front().second);
    tombstone_ends_.pop_front();
  }
}

void ReceiverImpl::Unpin(HandoffId handoff, Attempt attempt, Outbox* out) {
  while (true) {
    int32_t slot = -1;
    {
      MutexLock lock(&mu_);
      const auto it = live_.find(handoff);
      CHECK(it != live_.end()) << "a pinned hand-off was freed";
      Live* const live = it->second.get();
      const bool stale = attempt != live->attempt;
      if (stale && live->stale_pins == 1 && live->reset_slot &&
          live->state != State::kQuiescing) {
        live->reset_slot = false;
        slot = live->expectation.sequence.slot;  // this pin covers the reset
      } else {
        --(stale ? live->stale_pins : live->pins);
        if (live->state == State::kQuiescing) {
          Quiesce(live, out);
        } else if (stale && live->stale_pins == 0) {
          // Offers of the new attempt may wait on any link by now.
          for (const auto& session : sessions_) PostReady(session, out);
        }
        return;
      }
    }
    BATON_FAULT_POINT("handoff.before_slot_reset");
    options_.store->ResetSlot(slot);
  }
}

void ReceiverImpl::Verify(VerifyJob job) {
  BATON_FAULT_POINT("handoff.before_verify");
  absl::Status status = job.rows;
  if (status.ok()) {
    Expectation expectation;
    {
      MutexLock lock(&mu_);
      // Pinned, so it is there.
      expectation = live_.find(job.handoff)->second->expectation;
    }
    status = VerifySeal(*options_.store, job.seal,
                        {.prompt_tokens = expectation.prompt_tokens,
                         .prompt_hash = expectation.prompt_hash,
                         .sequence = expectation.sequence,
                         .vocab_size = options_.vocab_size});
  }
  Outbox out;
  bool pinned = true;
  {
    MutexLock lock(&mu_);
    Live* const live = Current(job.handoff, job.attempt);
    if (live != nullptr && live->state == State::kSealed) {
      // Unpinned in the step that makes Commit possible, not after it.
      --live->pins;
      pinned = false;
      if (status.ok()) {
        live->state = State::kVerified;
        PushEvent({.kind = ReceiverEventKind::kVerified,
                   .handoff = job.handoff,
                   .attempt = job.attempt,
                   .last_logits = std::move(job.seal.last_logits),
                   .receive_us = absl::ToInt64Microseconds(
                       options_.clock->Now() - live->reserved_at)},
                  &out);
      } else {
        FailAttempt(live, status, &out);
      }
    }
  }
  if (pinned) Unpin(job.handoff, job.attempt, &out);
  Flush(&out);
}

void ReceiverImpl::RunVerifier() {
  while (true) {
    VerifyJob job;
    {
      MutexLock lock(&mu_);
      while (verify_jobs_.empty() && !stopping_) verify_due_.Wait(&mu_);
      if (stopping_) return;
      job = std::move(verify_jobs_.front());
      verify_jobs_.pop_front();
    }
    Verify(std::move(job));
  }
}

void ReceiverImpl::Flush(Outbox* out) {
  for (const auto& [link, answer] : out->answers) {
    // A link that is gone reports it through OnLinkClosed.
    std::visit([&l = *link](const auto& m) { l.Send(m).IgnoreError(); },
               answer);
  }
  for (const auto& [link, status] : out->closes) link->Close(status);
  if (out->wake && options_.on_event) options_.on_event();
}

}  // namespace receiver_internal

absl::StatusOr<std::unique_ptr<Receiver>> CreateReceiver(
    ReceiverOptions options) {
  if (options.store == nullptr || options.clock == nullptr) {
    return absl::InvalidArgumentError("a receiver needs a store and a clock");
  }
  if (options.identity.incarnation == 0 || options.vocab_size < 1 ||
      options.endpoints.empty() || options.max_segment_bytes < 1 ||
      options.max_links < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "receiver options: incarnation ", options.identity.incarnation,
        ", vocab_size ", options.vocab_size, ", ", options.endpoints.size(),
        " endpoints, max_segment_bytes ", options.max_segment_bytes,
        ", max_links ", options.max_links, "; expected all positive"));
  }
  if (options.identity.state_format_hash != options.store->format().Hash()) {
    return absl::InvalidArgumentError(
        "the receiver's identity has another StateFormat than its store");
  }
  return std::make_unique<receiver_internal::ReceiverImpl>(std::move(options));
}

}  // namespace baton::handoff
