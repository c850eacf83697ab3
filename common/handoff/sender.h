// Sending side of hand-offs (design.md 2): gathers complete rows into staging
// segments and moves them over links to receivers. Neutral: any process that
// holds cached state can send.
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
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/handoff/ticket.h"
#include "common/kv/kv_store.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// What the step loop hands over when the router attached a ticket.
struct SendRequest {
  HandoffId handoff;
  Attempt attempt = 0;
  Ticket ticket;
  int64_t prompt_tokens = 0;
  // Must stay readable until the kQuiet event for this hand-off.
  kv::SequenceView sequence;
  // When the request ends; the hand-off fails by then at the latest.
  absl::Time deadline;
};

// What the step loop knows once the whole prompt is processed.
struct SealRequest {
  // HashTokenIds of the ids that were processed, not of those that were asked
  // for: the receiver compares it with what the router told it.
  Sha256Digest prompt_hash{};
  std::vector<float> last_logits;  // [vocab]
  int64_t prefill_us = 0;          // admission to last chunk, for the timeline
};

enum class SenderEventKind {
  kCommitted,  // the receiver's step loop took it over
  kFailed,     // rejected, link lost, stalled or timed out; status says which
  kQuiet,      // no gather or send touches the sequence any more (after Cancel,
               // kCommitted or kFailed); its blocks may go
};
struct SenderEvent {
  SenderEventKind kind;
  HandoffId handoff;
  Attempt attempt = 0;
  absl::Status status;
};

// Label values and values for the metrics room; counters only grow.
struct SenderStats {
  std::vector<std::pair<kv::Component, int64_t>> bytes;  // sent, per component
  int64_t segments = 0;
  int64_t links_up = 0;
};

// Thread-safe. Calls return at once; the work happens on one thread per link.
// Per hand-off: Start, RowsComplete*, Seal or Cancel; then exactly one
// kCommitted or kFailed (kCancel: none), then exactly one kQuiet.
class Sender {
 public:
  virtual ~Sender() = default;

  // ABORTED for a ticket of another attempt than the request's, or of one not
  // newer than what was sent before; FAILED_PRECONDITION for another
  // StateFormat; ALREADY_EXISTS for a hand-off that is being sent;
  // RESOURCE_EXHAUSTED when max_links are busy; INVALID_ARGUMENT for a ticket
  // without endpoint or of another hand-off. A stale incarnation shows when the
  // link is opened: kFailed with ABORTED.
  virtual absl::Status Start(const SendRequest& request) = 0;
  // `processed` tokens are in the cache: newly complete growing rows may go.
  virtual void RowsComplete(HandoffId handoff, int64_t processed) = 0;
  // The whole prompt is processed: the rest, boundary rows, manifest, logits.
  virtual void Seal(HandoffId handoff, SealRequest seal) = 0;
  virtual void Cancel(HandoffId handoff, absl::string_view reason) = 0;

  // Events since the last call, in order. `on_event` of the options wakes the
  // step loop when there are some.
  virtual std::vector<SenderEvent> TakeEvents() = 0;

  virtual SenderStats stats() const = 0;
};

struct SenderOptions {
  transfer::LinkIdentity identity;  // this process
  kv::KvStore* store = nullptr;     // outlives the sender
  transfer::LinkDialer* dialer = nullptr;
  Clock* clock = Clock::Real();
  std::function<void()> on_event;  // any thread; must not block
  int64_t max_segment_bytes = int64_t{8} << 20;
  int32_t max_outstanding_segments = 2;
  absl::Duration stall_timeout = absl::Seconds(10);  // no Posted/Done progress
  // From Seal to the verdict; then one Query, and as long again.
  absl::Duration verdict_timeout = absl::Seconds(10);
  absl::Duration dial_timeout = absl::Seconds(5);
  // Between attempts to reach a receiver that owes a verdict.
  absl::Duration redial_interval = absl::Milliseconds(200);
  absl::Duration idle_timeout = absl::Minutes(5);  // then the link is closed
  int32_t max_links = 64;
};

absl::StatusOr<std::unique_ptr<Sender>> CreateSender(SenderOptions options);

}  // namespace baton::handoff
