// Receiving side of hand-offs (design.md 2): owns the state of every promised
// hand-off from Reserve until its memory is quiet, and tombstones after that.
//
// States, who leaves them, deadline and metric: common/handoff/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/handoff/ticket.h"
#include "common/kv/kv_store.h"
#include "common/request/request.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// What the step loop has reserved for one hand-off.
struct Expectation {
  HandoffId handoff;
  int64_t prompt_tokens = 0;
  Sha256Digest prompt_hash{};
  // Memory that rows are scattered into; must stay until kQuiet.
  kv::SequenceView sequence;
  absl::Time deadline;  // the request's; the lease never goes beyond it
};

enum class ReceiverEventKind {
  kVerified,  // everything arrived and was checked; the step loop may Commit
  kFailed,    // this attempt is void (status); the hand-off stays RESERVED and
              // waits for Reticket or Abort until its lease ends
  kExpired,   // lease or deadline ended; the hand-off is ABORTED
  kQuiet,     // after Abort, kExpired or Commit: no scatter touches the memory
};
struct ReceiverEvent {
  ReceiverEventKind kind;
  HandoffId handoff;
  Attempt attempt = 0;
  absl::Status status;             // kFailed, kExpired
  std::vector<float> last_logits;  // kVerified, [vocab]
  int64_t receive_us = 0;          // kVerified: reservation to seal
};

// Label values and values for the metrics room; counters only grow.
struct ReceiverStats {
  std::vector<std::pair<kv::Component, int64_t>> bytes;   // kept, per component
  std::vector<std::pair<std::string, int32_t>> states;    // live hand-offs
  std::vector<std::pair<std::string, int64_t>> failures;  // per reason name
  int64_t segments_dropped = 0;
  int32_t tombstones = 0;
  int32_t links_up = 0;
};

enum class CommitResult { kCommitted, kNotVerified };

// One link per sending worker: a new Hello of the same worker voids its older
// link and what is being received on it. Destroy after the transport that
// delivers to acceptor() has stopped.
//
// Thread-safe: the step loop calls the functions below, link threads deliver.
// Only Commit ends a hand-off well, and only the step loop calls it.
class Receiver {
 public:
  virtual ~Receiver() = default;

  // RESERVED with attempt 1; the ticket to give out. The caller has reset the
  // slot (KvStore::ResetSlot). ALREADY_EXISTS while the
  // id is live or a tombstone.
  virtual absl::StatusOr<Ticket> Reserve(const Expectation& expectation) = 0;
  // Voids the current attempt, promises `attempt` (must be the next one).
  // Starts a new lease under the same hard limits. FAILED_PRECONDITION when
  // committed, NOT_FOUND when unknown or aborted, ABORTED when not newer,
  // INVALID_ARGUMENT when an attempt would be left out.
  virtual absl::StatusOr<Ticket> Reticket(HandoffId handoff,
                                          Attempt attempt) = 0;
  // VERIFIED -> COMMITTED, sends the verdict. kQuiet follows.
  virtual CommitResult Commit(HandoffId handoff, Attempt attempt) = 0;
  // Any live state -> ABORTED; kQuiet follows when the last scatter is over.
  // No-op for unknown or committed hand-offs.
  virtual void Abort(HandoffId handoff, absl::string_view reason) = 0;

  // Events since the last call, in order; also advances leases and tombstones
  // by the clock, so the step loop calls it at least every 100 ms.
  virtual std::vector<ReceiverEvent> TakeEvents() = 0;

  // Takes the links of senders: installed into the LinkService or the
  // in-process transport.
  virtual transfer::LinkAcceptor* acceptor() = 0;

  virtual ReceiverStats stats() const = 0;
};

struct ReceiverOptions {
  transfer::LinkIdentity identity;
  std::vector<std::string> endpoints;  // put into tickets
  kv::KvStore* store = nullptr;        // outlives the receiver
  int32_t vocab_size = 0;              // length of the last logits
  Clock* clock = Clock::Real();
  std::function<void()> on_event;            // any thread; must not block
  absl::Duration lease = absl::Seconds(10);  // extended by progress
  absl::Duration max_lifetime = absl::Minutes(10);  // hard server-side maximum
  absl::Duration tombstone = absl::Minutes(2);
  int64_t max_segment_bytes = int64_t{8} << 20;
  int32_t max_links = 64;
};

absl::StatusOr<std::unique_ptr<Receiver>> CreateReceiver(
    ReceiverOptions options);

}  // namespace baton::handoff
