// Internal: the Receiver. receiver.cc has what the step loop calls,
// receiver_link.cc what links deliver.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/handoff/receiver.h"
#include "common/handoff/receiver_state.h"
#include "common/transfer/link.h"

namespace baton::handoff::receiver_internal {

// Lock order: mu_ is a leaf. Links, the store and on_event are called without
// it: what they shall do is collected in an Outbox and done by Flush.
class ReceiverImpl final : public Receiver, public transfer::LinkAcceptor {
 public:
  explicit ReceiverImpl(ReceiverOptions options);
  ~ReceiverImpl() override;

  absl::StatusOr<Ticket> Reserve(const Expectation& expectation) override;
  absl::StatusOr<Ticket> Reticket(HandoffId handoff, Attempt attempt) override;
  CommitResult Commit(HandoffId handoff, Attempt attempt) override;
  void Abort(HandoffId handoff, absl::string_view reason) override;
  std::vector<ReceiverEvent> TakeEvents() override;
  transfer::LinkAcceptor* acceptor() override { return this; }
  ReceiverStats stats() const override;

  absl::StatusOr<std::shared_ptr<transfer::LinkReceiverHandler>> Accept(
      const transfer::LinkHello& hello, LinkEpoch epoch,
      std::shared_ptr<transfer::ReceiverLink> link) override;

  // From sessions.
  void OnOffer(const std::shared_ptr<Session>& session,
               const transfer::Offer& offer);
  void OnSeal(const std::shared_ptr<Session>& session, transfer::Seal seal);
  void OnAbort(const std::shared_ptr<Session>& session,
               const transfer::LinkAbort& abort);
  void OnQuery(const std::shared_ptr<Session>& session,
               const transfer::Query& query);
  void OnProgress(const std::shared_ptr<Session>& session,
                  const transfer::LinkProgress& progress);
  void OnSegment(const std::shared_ptr<Session>& session,
                 const transfer::SegmentHeader& header,
                 absl::Span<const std::byte> payload);
  void OnLinkClosed(const std::shared_ptr<Session>& session,
                    const absl::Status& status);

 private:
  using LiveMap = absl::flat_hash_map<HandoffId, std::unique_ptr<Live>>;

  // The hand-off when `attempt` is its current one and not void; else null.
  Live* Current(HandoffId handoff, Attempt attempt) BATON_REQUIRES(mu_);
  // Current, and this link carries it or (bind) may from now on.
  Live* Bind(const std::shared_ptr<Session>& session, HandoffId handoff,
             Attempt attempt) BATON_REQUIRES(mu_);
  Ticket MakeTicket(const Live& live) const BATON_REQUIRES(mu_);
  void ExtendLease(Live* live) BATON_REQUIRES(mu_);
  void PushEvent(ReceiverEvent event, Outbox* out) BATON_REQUIRES(mu_);
  // Notes the verdict of the current attempt and sends it, if a link is there.
  void Decide(Live* live, transfer::VerdictKind kind,
              const absl::Status& status, Outbox* out) BATON_REQUIRES(mu_);
  // The attempt is void; RESERVED again.
  void FailAttempt(Live* live, const absl::Status& status, Outbox* out)
      BATON_REQUIRES(mu_);
  void AbortLive(Live* live, const absl::Status& status, Outbox* out)
      BATON_REQUIRES(mu_);
  // -> QUIESCING, and -> FREE with a tombstone when nothing is pinned: `live`
  // is gone then.
  void Quiesce(Live* live, Outbox* out) BATON_REQUIRES(mu_);
  void DropOldTombstones(absl::Time now) BATON_REQUIRES(mu_);
  void Tell(const std::shared_ptr<Session>& session, HandoffId handoff,
            Attempt attempt, Outbox* out) BATON_REQUIRES(mu_);
  // What became of an attempt that is not current; null: nothing known.
  const transfer::Verdict* Ended(HandoffId handoff, Attempt attempt) const
      BATON_REQUIRES(mu_);
  void PostReady(const std::shared_ptr<Session>& session, Outbox* out)
      BATON_REQUIRES(mu_);
  void VoidSession(const std::shared_ptr<Session>& session,
                   const absl::Status& status, Outbox* out) BATON_REQUIRES(mu_);
  void CloseSession(const std::shared_ptr<Session>& session,
                    const absl::Status& status, Outbox* out)
      BATON_REQUIRES(mu_);
  // Ends a pin that was taken at `attempt`; resets the slot and frees the
  // hand-off when it was the last one that stood in the way. Without mu_.
  void Unpin(HandoffId handoff, Attempt attempt, Outbox* out)
      BATON_EXCLUDES(mu_);
  void Verify(VerifyJob job) BATON_EXCLUDES(mu_);
  void RunVerifier();
  void Flush(Outbox* out) BATON_EXCLUDES(mu_);

  const ReceiverOptions options_;
  const Sha256Digest format_hash_;

  mutable Mutex mu_;
  CondVar verify_due_;
  LiveMap live_ BATON_GUARDED_BY(mu_);
  absl::flat_hash_map<HandoffId, Tombstone> tombstones_ BATON_GUARDED_BY(mu_);
  std::deque<std::pair<absl::Time, HandoffId>> tombstone_ends_
      BATON_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Session>> sessions_ BATON_GUARDED_BY(mu_);
  std::vector<ReceiverEvent> events_ BATON_GUARDED_BY(mu_);
  std::deque<VerifyJob> verify_jobs_ BATON_GUARDED_BY(mu_);
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  std::map<kv::Component, int64_t> bytes_ BATON_GUARDED_BY(mu_);
  std::map<std::string, int64_t> failures_ BATON_GUARDED_BY(mu_);
  int64_t segments_dropped_ BATON_GUARDED_BY(mu_) = 0;
  Thread verifier_;
};

// Forwards what one link delivers; the receiver keeps the state.
class Session final : public transfer::LinkReceiverHandler,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(ReceiverImpl* receiver, SessionState initial)
      : state(std::move(initial)), receiver_(receiver) {}
  void OnOffer(const transfer::Offer& m) override {
    receiver_->OnOffer(shared_from_this(), m);
  }
  void OnSeal(transfer::Seal m) override {
    receiver_->OnSeal(shared_from_this(), std::move(m));
  }
  void OnAbort(const transfer::LinkAbort& m) override {
    receiver_->OnAbort(shared_from_this(), m);
  }
  void OnQuery(const transfer::Query& m) override {
    receiver_->OnQuery(shared_from_this(), m);
  }
  void OnProgress(const transfer::LinkProgress& m) override {
    receiver_->OnProgress(shared_from_this(), m);
  }
  void OnSegment(const transfer::SegmentHeader& header,
                 absl::Span<const std::byte> payload) override {
    receiver_->OnSegment(shared_from_this(), header, payload);
  }
  void OnLinkClosed(const absl::Status& status) override {
    receiver_->OnLinkClosed(shared_from_this(), status);
  }

  SessionState state;  // guarded by the receiver's mutex

 private:
  ReceiverImpl* const receiver_;
};

}  // namespace baton::handoff::receiver_internal
