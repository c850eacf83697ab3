// What links deliver to the receiver.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/fault_point.h"
#include "common/handoff/checksum.h"
#include "common/handoff/receiver_impl.h"

namespace baton::handoff::receiver_internal {

namespace {

using request::ErrorReason;
using transfer::Done;
using transfer::LinkHello;
using transfer::Offer;
using transfer::Posted;
using transfer::Verdict;
using transfer::VerdictKind;

// Offers that a sender may have open on one link. Senders keep two; this only
// bounds what a wrong one can make us hold.
constexpr size_t kMaxOpenOffers = 16;
constexpr size_t kMaxTold = 4096;

absl::Status Rejected(const absl::Status& status) {
  return request::MakeError(absl::StatusCode::kDataLoss, status.message(),
                            {.reason = ErrorReason::kHandoffRejected});
}

absl::Status Lost(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kUnavailable, message,
                            {.reason = ErrorReason::kWorkerLost});
}

}  // namespace

absl::StatusOr<std::shared_ptr<transfer::LinkReceiverHandler>>
ReceiverImpl::Accept(const LinkHello& hello, LinkEpoch epoch,
                     std::shared_ptr<transfer::ReceiverLink> link) {
  if (hello.receiver_incarnation != options_.identity.incarnation) {
    return request::MakeError(
        absl::StatusCode::kAborted,
        absl::StrCat("hello for incarnation ", hello.receiver_incarnation,
                     " of ", options_.identity.worker, ", which is now ",
                     options_.identity.incarnation),
        {.reason = ErrorReason::kStale});
  }
  if (hello.sender.model_digest != options_.identity.model_digest ||
      hello.sender.state_format_hash != format_hash_) {
    return request::MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(hello.sender.worker, " has another ",
                     hello.sender.model_digest != options_.identity.model_digest
                         ? "model"
                         : "StateFormat"),
        {.reason = ErrorReason::kMismatch});
  }
  if (hello.sender.incarnation == 0 || hello.sender.worker.empty()) {
    return absl::InvalidArgumentError(
        "hello without the sender's name or incarnation");
  }
  Outbox out;
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    int32_t up = 0;
    for (const auto& other : std::vector(sessions_)) {
      if (other->state.closed) continue;
      if (other->state.hello.sender.worker == hello.sender.worker) {
        CloseSession(other, Lost("replaced by a newer link of the same worker"),
                     &out);
      } else {
        ++up;
      }
    }
    if (up < options_.max_links) {
      session = std::make_shared<Session>(
          this, SessionState{
                    .hello = hello, .epoch = epoch, .link = std::move(link)});
      sessions_.push_back(session);
    }
  }
  Flush(&out);
  if (session == nullptr) {
    return request::MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("all ", options_.max_links, " links are in use"),
        {.reason = ErrorReason::kOverloaded});
  }
  return session;
}

Live* ReceiverImpl::Bind(const std::shared_ptr<Session>& session,
                         HandoffId handoff, Attempt attempt) {
  Live* const live = Current(handoff, attempt);
  if (live == nullptr) return nullptr;
  if (live->link == nullptr && live->state == State::kReserved) {
    live->link = session;
  }
  return live->link == session ? live : nullptr;
}

const Verdict* ReceiverImpl::Ended(HandoffId handoff, Attempt attempt) const {
  const std::vector<Verdict>* verdicts = nullptr;
  if (const auto it = live_.find(handoff); it != live_.end()) {
    verdicts = &it->second->verdicts;
  } else if (const auto end = tombstones_.find(handoff);
             end != tombstones_.end()) {
    verdicts = &end->second.verdicts;
  } else {
    return nullptr;
  }
  for (const Verdict& verdict : *verdicts) {
    if (verdict.attempt == attempt) return &verdict;
  }
  return nullptr;
}

void ReceiverImpl::Tell(const std::shared_ptr<Session>& session,
                        HandoffId handoff, Attempt attempt, Outbox* out) {
  auto& told = session->state.told;
  if (told.size() >= kMaxTold) told.clear();
  if (!told.emplace(handoff, attempt).second) return;
  Verdict verdict{.handoff = handoff,
                  .attempt = attempt,
                  .kind = VerdictKind::kRejected,
                  .reason = ErrorReason::kStale,
                  .message = "not the current attempt of a live hand-off"};
  if (const Verdict* const ended = Ended(handoff, attempt)) verdict = *ended;
  out->answers.emplace_back(session->state.link, std::move(verdict));
}

void ReceiverImpl::PostReady(const std::shared_ptr<Session>& session,
                             Outbox* out) {
  if (session->state.closed) return;
  for (auto& pending : session->state.offers) {
    if (pending.posted) continue;
    const Live* const live =
        Current(pending.offer.handoff, pending.offer.attempt);
    if (live != nullptr && live->stale_pins > 0) return;
    pending.posted = true;
    out->answers.emplace_back(session->state.link,
                              Posted{pending.offer.segment_seq});
  }
}

void ReceiverImpl::VoidSession(const std::shared_ptr<Session>& session,
                               const absl::Status& status, Outbox* out) {
  if (session->state.closed) return;
  session->state.closed = true;
  session->state.offers.clear();
  for (const auto& [id, live] : live_) {
    if (live->link != session) continue;
    if (live->state == State::kSealed || live->state == State::kVerified) {
      // All of it arrived: it can still be committed, and the sender asks.
      live->link = nullptr;
    } else {
      FailAttempt(
          live.get(),
          Lost(absl::StrCat("link of the prefill lost: ", status.message())),
          out);
    }
  }
}

void ReceiverImpl::CloseSession(const std::shared_ptr<Session>& session,
                                const absl::Status& status, Outbox* out) {
  if (session->state.closed) return;
  VoidSession(session, status, out);
  out->closes.emplace_back(session->state.link, status);
}

void ReceiverImpl::OnOffer(const std::shared_ptr<Session>& session,
                           const Offer& offer) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    SessionState& state = session->state;
    if (state.closed) return;
    if (offer.segment_seq != state.next_seq || offer.payload_bytes < 1 ||
        offer.payload_bytes > options_.max_segment_bytes ||
        state.offers.size() >= kMaxOpenOffers) {
      CloseSession(session,
                   absl::DataLossError(absl::StrCat(
                       "offer ", offer.segment_seq, " of ", offer.payload_bytes,
                       " bytes, expected ", state.next_seq, " of 1 to ",
                       options_.max_segment_bytes, " with less than ",
                       kMaxOpenOffers, " open")),
                   &out);
    } else {
      ++state.next_seq;
      state.offers.push_back({.offer = offer});
      Live* const live = Bind(session, offer.handoff, offer.attempt);
      if (live == nullptr || (live->state != State::kReserved &&
                              live->state != State::kReceiving)) {
        Tell(session, offer.handoff, offer.attempt, &out);
      } else if (const absl::Status shape =
                     RowLedger::CheckShape(options_.store->format(),
                                           offer.pieces, offer.payload_bytes);
                 !shape.ok()) {
        FailAttempt(live, Rejected(shape), &out);
      } else {
        live->state = State::kReceiving;
        ExtendLease(live);
        state.offers.back().welcome = true;
      }
      PostReady(session, &out);
    }
  }
  Flush(&out);
}

void ReceiverImpl::OnSegment(const std::shared_ptr<Session>& session,
                             const transfer::SegmentHeader& header,
                             absl::Span<const std::byte> payload) {
  Outbox out;
  Offer offer;
  bool pinned = false;
  kv::SequenceView sequence;
  {
    MutexLock lock(&mu_);
    SessionState& state = session->state;
    if (state.closed) return;
    const bool expected =
        !state.offers.empty() && state.offers.front().posted &&
        header.link_epoch == state.epoch &&
        header.segment_seq == state.offers.front().offer.segment_seq &&
        header.handoff == state.offers.front().offer.handoff &&
        header.attempt == state.offers.front().offer.attempt &&
        header.payload_bytes == state.offers.front().offer.payload_bytes &&
        payload.size() == static_cast<size_t>(header.payload_bytes);
    if (!expected) {
      ++segments_dropped_;
      // The bytes that follow cannot be trusted to be what they say either.
      CloseSession(session,
                   absl::DataLossError(absl::StrCat(
                       "segment ", header.segment_seq,
                       " is not the one that was offered and posted")),
                   &out);
    } else {
      offer = std::move(state.offers.front().offer);
      const bool welcome = state.offers.front().welcome;
      state.offers.pop_front();
      Live* const live = Current(offer.handoff, offer.attempt);
      if (welcome && live != nullptr && live->link == session &&
          live->state == State::kReceiving) {
        ++live->pins;
        pinned = true;
        sequence = live->expectation.sequence;
      } else {
        ++segments_dropped_;
      }
    }
  }
  bool kept = false;
  if (pinned) {
    BATON_FAULT_POINT("handoff.segment_received");
    const bool intact = PayloadChecksum(payload) == header.checksum;
    bool scatter = false;
    {
      MutexLock lock(&mu_);
      Live* const live = Current(offer.handoff, offer.attempt);
      if (live == nullptr || live->state != State::kReceiving) {
        ++segments_dropped_;
      } else if (!intact) {
        ++segments_dropped_;
        FailAttempt(live,
                    Rejected(absl::DataLossError(
                        absl::StrCat("checksum of segment ", header.segment_seq,
                                     " does not match"))),
                    &out);
      } else if (const absl::Status claim = live->rows->Claim(offer.pieces);
                 !claim.ok()) {
        ++segments_dropped_;
        FailAttempt(live, Rejected(claim), &out);
      } else {
        scatter = true;
      }
    }
    if (scatter) {
      BATON_FAULT_POINT("handoff.before_scatter");
      const std::byte* data = payload.data();
      std::vector<std::pair<kv::Component, int64_t>> written;
      for (const transfer::Piece& piece : offer.pieces) {
        options_.store->ScatterRows(piece.region, sequence, {piece.rows}, data);
        const int64_t bytes =
            piece.rows.count *
            kv::RowBytes(options_.store->format(), piece.region.component);
        written.emplace_back(piece.region.component, bytes);
        data += bytes;
      }
      MutexLock lock(&mu_);
      for (const auto& [component, bytes] : written) bytes_[component] += bytes;
      kept = Current(offer.handoff, offer.attempt) != nullptr;
    }
    Unpin(offer.handoff, offer.attempt, &out);
  }
  if (offer.segment_seq != 0) {
    out.answers.emplace_back(session->state.link,
                             Done{offer.segment_seq, kept});
  }
  Flush(&out);
}

void ReceiverImpl::OnSeal(const std::shared_ptr<Session>& session,
                          transfer::Seal seal) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    if (session->state.closed) return;
    Live* const live = Bind(session, seal.handoff, seal.attempt);
    if (live == nullptr ||
        (live->state != State::kReserved && live->state != State::kReceiving)) {
      Tell(session, seal.handoff, seal.attempt, &out);
    } else {
      live->state = State::kSealed;
      ExtendLease(live);
      // The sender seals after its last Done, so nothing is under way; a row
      // still missing will never come.
      ++live->pins;
      verify_jobs_.push_back({.handoff = seal.handoff,
                              .attempt = seal.attempt,
                              .rows = live->rows->Complete(),
                              .seal = std::move(seal)});
      if (!verify_jobs_.back().rows.ok()) {
        verify_jobs_.back().rows = Rejected(verify_jobs_.back().rows);
      }
      verify_due_.Signal();
    }
  }
  Flush(&out);
}

void ReceiverImpl::OnAbort(const std::shared_ptr<Session>& session,
                           const transfer::LinkAbort& abort) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    if (session->state.closed) return;
    Live* const live = Bind(session, abort.handoff, abort.attempt);
    if (live != nullptr) {
      FailAttempt(
          live,
          request::MakeError(absl::StatusCode::kCancelled,
                             absl::StrCat("the sender gave up: ", abort.reason),
                             {.reason = ErrorReason::kCancelled}),
          &out);
    }
  }
  Flush(&out);
}

void ReceiverImpl::OnQuery(const std::shared_ptr<Session>& session,
                           const transfer::Query& query) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    if (session->state.closed) return;
    Live* const live = Current(query.handoff, query.attempt);
    if (live != nullptr &&
        (live->state == State::kSealed || live->state == State::kVerified)) {
      live->link = session;  // the verdict follows on this link
    } else if (const Verdict* const ended =
                   Ended(query.handoff, query.attempt)) {
      out.answers.emplace_back(session->state.link, *ended);
    } else {
      out.answers.emplace_back(
          session->state.link,
          Verdict{.handoff = query.handoff,
                  .attempt = query.attempt,
                  .kind = VerdictKind::kUnknown,
                  .reason = ErrorReason::kStale,
                  .message = "not sealed here, or forgotten"});
    }
  }
  Flush(&out);
}

void ReceiverImpl::OnProgress(const std::shared_ptr<Session>& session,
                              const transfer::LinkProgress& progress) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    if (session->state.closed) return;
    Live* const live = Bind(session, progress.handoff, progress.attempt);
    if (live == nullptr) {
      Tell(session, progress.handoff, progress.attempt, &out);
    } else if (live->state == State::kReserved ||
               live->state == State::kReceiving) {
      live->state = State::kReceiving;
      // A message that repeats itself is a sign of life, not of progress.
      if (progress.processed_tokens > live->processed_tokens) {
        live->processed_tokens = progress.processed_tokens;
        ExtendLease(live);
      }
    }
  }
  Flush(&out);
}

void ReceiverImpl::OnLinkClosed(const std::shared_ptr<Session>& session,
                                const absl::Status& status) {
  Outbox out;
  {
    MutexLock lock(&mu_);
    VoidSession(session, status, &out);
    std::erase(sessions_, session);
  }
  Flush(&out);
}

}  // namespace baton::handoff::receiver_internal
