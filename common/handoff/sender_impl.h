// Internal: the Sender. sender.cc has what the step loop calls, sender_link.cc
// the thread of one link.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/handoff/segment_plan.h"
#include "common/handoff/sender.h"
#include "common/transfer/link.h"

namespace baton::handoff::sender_internal {

struct Link;

// One attempt being sent. Guarded by the sender's mutex; the cached state is
// read without it while `gathering`.
struct Job {
  Job(const SendRequest& r, const kv::StateFormat& format)
      : request(r), wire_attempt(r.attempt), plan(format) {}

  const SendRequest request;
  Attempt wire_attempt;  // request.attempt but for a fault point
  std::shared_ptr<Link> link;
  SegmentPlan plan;
  std::vector<uint64_t> checksums;  // by index in plan.regions()
  std::vector<int64_t> sent_rows;   // likewise
  int64_t processed_tokens = 0;
  int64_t told_tokens = 0;  // processed_tokens as the receiver knows them
  int32_t open_segments = 0;
  bool gathering = false;
  bool finished = false;
  bool sealed = false;     // Seal was called
  bool seal_sent = false;  // the verdict is awaited until verdict_deadline
  bool query_due = false;
  bool queried = false;
  absl::Time verdict_deadline;
  SealRequest seal;  // once sealed
};

// A segment between Offer and Done.
struct OpenSegment {
  transfer::SegmentHeader header;
  std::shared_ptr<Job> job;
  std::vector<std::byte> payload;
  std::vector<std::pair<kv::Component, int64_t>> bytes;
  bool posted = false;
  bool sent = false;
};

// One receiver incarnation at one endpoint. Guarded by the sender's mutex but
// for `link`, which only the link's thread touches.
struct Link {
  std::string endpoint;
  Incarnation receiver_incarnation = 0;
  std::unique_ptr<transfer::SenderLink> link;
  bool up = false;
  std::optional<absl::Status> lost;
  bool retire = false;  // no further jobs; the thread ends
  bool ended = false;   // the thread is about to return
  bool signalled = false;
  CondVar changed;
  uint64_t next_seq = 1;
  int32_t picks = 0;
  std::deque<OpenSegment> open;
  std::vector<std::vector<std::byte>> free_staging;
  std::vector<std::shared_ptr<Job>> jobs;  // oldest first
  std::deque<transfer::LinkAbort> aborts;
  absl::Time last_progress;
  absl::Time idle_since;
  absl::Time redial_at;
  Thread thread;
};

// Lock order: mu_ is a leaf. Links, the store and on_event are called without
// it.
class SenderImpl final : public Sender {
 public:
  explicit SenderImpl(SenderOptions options);
  ~SenderImpl() override;

  absl::Status Start(const SendRequest& request) override;
  void RowsComplete(HandoffId handoff, int64_t processed) override;
  void Seal(HandoffId handoff, SealRequest seal) override;
  void Cancel(HandoffId handoff, absl::string_view reason) override;
  std::vector<SenderEvent> TakeEvents() override;
  SenderStats stats() const override;

  // From the links' handlers.
  void OnPosted(const std::shared_ptr<Link>& link,
                const transfer::Posted& posted);
  void OnDone(const std::shared_ptr<Link>& link, const transfer::Done& done);
  void OnVerdict(const transfer::Verdict& verdict);
  void OnLinkClosed(const std::shared_ptr<Link>& link,
                    const absl::Status& status);

 private:
  using LinkKey = std::pair<std::string, Incarnation>;

  absl::StatusOr<std::shared_ptr<Link>> LinkFor(const Ticket& ticket)
      BATON_REQUIRES(mu_);
  void Wake(const std::shared_ptr<Link>& link) BATON_REQUIRES(mu_);
  // kCommitted, kFailed or (no status) cancelled; kQuiet when nothing gathers.
  void Finish(const std::shared_ptr<Job>& job,
              const std::optional<absl::Status>& status) BATON_REQUIRES(mu_);
  void Quiet(const std::shared_ptr<Job>& job) BATON_REQUIRES(mu_);
  void NotifyIfEvents() BATON_EXCLUDES(mu_);
  void Reap() BATON_EXCLUDES(mu_);

  // The thread of one link.
  void RunLink(const std::shared_ptr<Link>& link);
  // Does one thing; false when there is nothing to do now.
  bool Step(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  void CheckTimes(Link* link) BATON_REQUIRES(mu_);
  void GiveUpLink(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  bool Dial(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  bool SendControl(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  bool SendPosted(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  bool OfferNext(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  bool SendSeal(const std::shared_ptr<Link>& link) BATON_EXCLUDES(mu_);
  std::shared_ptr<Job> PickJob(Link* link) BATON_REQUIRES(mu_);
  transfer::Seal MakeSeal(const Job& job) const;
  // A failed Send means that the link is gone.
  void NoteSend(const std::shared_ptr<Link>& link, const absl::Status& status)
      BATON_EXCLUDES(mu_);

  const SenderOptions options_;
  const Sha256Digest format_hash_;

  mutable Mutex mu_;
  absl::flat_hash_map<HandoffId, std::shared_ptr<Job>> jobs_
      BATON_GUARDED_BY(mu_);
  std::map<LinkKey, std::shared_ptr<Link>> links_ BATON_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Link>> retired_ BATON_GUARDED_BY(mu_);
  // Latest attempts sent, so that an older one is refused.
  absl::flat_hash_map<HandoffId, Attempt> attempts_ BATON_GUARDED_BY(mu_);
  std::deque<HandoffId> attempts_order_ BATON_GUARDED_BY(mu_);
  std::vector<SenderEvent> events_ BATON_GUARDED_BY(mu_);
  bool notify_ BATON_GUARDED_BY(mu_) = false;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  std::map<kv::Component, int64_t> bytes_ BATON_GUARDED_BY(mu_);
  int64_t segments_ BATON_GUARDED_BY(mu_) = 0;
};

absl::Status LostError(absl::string_view message);

}  // namespace baton::handoff::sender_internal
