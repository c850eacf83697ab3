// A link: the control messages and segments between one sender process and one
// receiver process (design.md 2 and 7). Two implementations: in-process, and
// gRPC control with TCP segments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/kv/state_format.h"
#include "common/request/request.h"

namespace baton::transfer {

// Who is at one end.
struct LinkIdentity {
  std::string worker;
  Incarnation incarnation = 0;
  Sha256Digest model_digest{};
  Sha256Digest state_format_hash{};
  std::string node;
};

struct Piece {
  kv::Region region;
  kv::RowRange rows;
};

// Control messages, sender to receiver.
struct Offer {
  uint64_t segment_seq = 0;
  HandoffId handoff;
  Attempt attempt = 0;
  int64_t payload_bytes = 0;
  std::vector<Piece> pieces;
};
struct ManifestRegion {
  kv::Region region;
  int64_t rows = 0;
  uint64_t checksum = 0;
};
struct Manifest {
  int64_t processed_tokens = 0;
  Sha256Digest prompt_hash{};
  Sha256Digest state_format_hash{};
  int32_t checksum_algorithm = 1;
  std::vector<ManifestRegion> regions;
};
struct Seal {
  HandoffId handoff;
  Attempt attempt = 0;
  Manifest manifest;
  std::vector<float> last_logits;
  uint64_t logits_checksum = 0;
  int64_t prefill_us = 0;
};
struct LinkAbort {
  HandoffId handoff;
  Attempt attempt = 0;
  std::string reason;
};
struct Query {
  HandoffId handoff;
  Attempt attempt = 0;
};
struct LinkProgress {
  HandoffId handoff;
  Attempt attempt = 0;
  int64_t processed_tokens = 0;
};

// Control messages, receiver to sender.
struct Posted {
  uint64_t segment_seq = 0;
};
struct Done {
  uint64_t segment_seq = 0;
  bool kept = false;
};
enum class VerdictKind { kCommitted, kRejected, kUnknown };
struct Verdict {
  HandoffId handoff;
  Attempt attempt = 0;
  VerdictKind kind = VerdictKind::kUnknown;
  request::ErrorReason reason = request::ErrorReason::kUnspecified;
  std::string message;
};

// In-band header of every segment, 64 bytes little-endian on the wire.
struct SegmentHeader {
  LinkEpoch link_epoch = 0;
  uint64_t segment_seq = 0;
  HandoffId handoff;
  Attempt attempt = 0;
  int64_t payload_bytes = 0;
  uint64_t checksum = 0;  // over the payload as 16-byte words
};

// What the sender's end of a link is told. Called on a link thread, which holds
// no lock; must not block.
class LinkSenderHandler {
 public:
  virtual ~LinkSenderHandler() = default;
  virtual void OnPosted(const Posted& posted) = 0;
  virtual void OnDone(const Done& done) = 0;
  virtual void OnVerdict(const Verdict& verdict) = 0;
  // The link is gone; nothing further is delivered. Called exactly once.
  virtual void OnLinkClosed(const absl::Status& status) = 0;
};

// The sender's end. Thread-safe. Send* after the link closed are no-ops that
// return UNAVAILABLE.
class SenderLink {
 public:
  virtual ~SenderLink() =
      default;  // closes; OnLinkClosed has returned after it
  virtual LinkEpoch epoch() const = 0;
  virtual absl::Status Send(const Offer& offer) = 0;
  virtual absl::Status Send(const Seal& seal) = 0;
  virtual absl::Status Send(const LinkAbort& abort) = 0;
  virtual absl::Status Send(const Query& query) = 0;
  virtual absl::Status Send(const LinkProgress& progress) = 0;
  // Blocks at most until `deadline` (DEADLINE_EXCEEDED): the stalled link is to
  // be closed then.
  virtual absl::Status SendSegment(const SegmentHeader& header,
                                   absl::Span<const std::byte> payload,
                                   absl::Time deadline) = 0;
};

// What the receiver's end tells the receiver; one handler per link. Control
// messages come in order on one thread at a time, segments on another; no lock
// is held. Only OnSegment may take time.
class LinkReceiverHandler {
 public:
  virtual ~LinkReceiverHandler() = default;
  virtual void OnOffer(const Offer& offer) = 0;
  virtual void OnSeal(Seal seal) = 0;
  virtual void OnAbort(const LinkAbort& abort) = 0;
  virtual void OnQuery(const Query& query) = 0;
  virtual void OnProgress(const LinkProgress& progress) = 0;
  // A segment whose header the transport has parsed. Called in the order of
  // arrival on the link's data thread.
  virtual void OnSegment(const SegmentHeader& header,
                         absl::Span<const std::byte> payload) = 0;
  virtual void OnLinkClosed(const absl::Status& status) = 0;
};

// The receiver's end, for answers. Thread-safe.
class ReceiverLink {
 public:
  virtual ~ReceiverLink() = default;
  virtual absl::Status Send(const Posted& posted) = 0;
  virtual absl::Status Send(const Done& done) = 0;
  virtual absl::Status Send(const Verdict& verdict) = 0;
  // Ends the link; OnLinkClosed follows.
  virtual void Close(const absl::Status& status) = 0;
};

struct LinkHello {
  LinkIdentity sender;
  Incarnation receiver_incarnation = 0;  // as the ticket says
};

// Decides about new links: implemented by the hand-off receiver.
class LinkAcceptor {
 public:
  virtual ~LinkAcceptor() = default;
  // ABORTED (stale incarnation), FAILED_PRECONDITION (model, StateFormat). The
  // returned handler lives until its OnLinkClosed has returned.
  virtual absl::StatusOr<std::shared_ptr<LinkReceiverHandler>> Accept(
      const LinkHello& hello, LinkEpoch epoch,
      std::shared_ptr<ReceiverLink> link) = 0;
};

// Opens links: in-process, or gRPC + TCP.
class LinkDialer {
 public:
  virtual ~LinkDialer() = default;
  // Blocks at most until `deadline`. UNAVAILABLE when nobody answers, or what
  // the acceptor said; `handler` is not called then.
  virtual absl::StatusOr<std::unique_ptr<SenderLink>> Dial(
      const std::string& endpoint, const LinkHello& hello,
      std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) = 0;
};

}  // namespace baton::transfer
