// Internal to the receiver: what it keeps per hand-off and per link.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/handoff/receiver.h"
#include "common/handoff/row_ledger.h"
#include "common/transfer/link.h"

namespace baton::handoff::receiver_internal {

// COMMITTED, ABORTED and FREE are not kept: the first two are left in the same
// call that enters them, the third is a tombstone.
enum class State { kReserved, kReceiving, kSealed, kVerified, kQuiescing };
absl::string_view StateName(State state);

class Session;

// One live hand-off. Guarded by the receiver's mutex; the pages and the slot
// are touched without it, under a pin.
struct Live {
  Expectation expectation;
  State state = State::kReserved;
  Attempt attempt = 1;
  bool voided = false;  // the attempt failed; waits for Reticket
  bool committed = false;
  int64_t processed_tokens = 0;  // as the sender last said
  absl::Time reserved_at;
  absl::Time lease_end;
  std::shared_ptr<Session> link;  // carries the attempt; null: none (any more)
  std::unique_ptr<RowLedger> rows;
  // Scatters and verifications under way, of this attempt and of older ones.
  // Segments of the attempt are not Posted before stale_pins is 0.
  int32_t pins = 0;
  int32_t stale_pins = 0;
  bool reset_slot = false;                  // when stale_pins gets 0
  std::vector<transfer::Verdict> verdicts;  // of ended attempts
};

struct Tombstone {
  std::vector<transfer::Verdict> verdicts;
  bool committed = false;
  int64_t processed_tokens = 0;  // as the sender last said
};

// The receiver's side of one link. Guarded by the receiver's mutex but for
// `link`, which is thread-safe.
struct SessionState {
  transfer::LinkHello hello;
  LinkEpoch epoch = 0;
  std::shared_ptr<transfer::ReceiverLink> link;
  bool closed = false;
  uint64_t next_seq = 1;
  struct Pending {
    transfer::Offer offer;
    // Was of a current attempt and well formed when offered. Others are dropped
    // even if their attempt becomes current meanwhile.
    bool welcome = false;
    bool posted = false;
  };
  std::deque<Pending> offers;  // in sequence, not received yet
  // Stale attempts that the sender was told about.
  std::set<std::pair<HandoffId, Attempt>> told;
};

struct VerifyJob {
  HandoffId handoff;
  Attempt attempt = 0;
  absl::Status rows;  // RowLedger::Complete at the seal
  transfer::Seal seal;
};

// What to do once the mutex is free again: links are never called under it.
struct Outbox {
  using Answer =
      std::variant<transfer::Posted, transfer::Done, transfer::Verdict>;
  std::vector<std::pair<std::shared_ptr<transfer::ReceiverLink>, Answer>>
      answers;
  std::vector<std::pair<std::shared_ptr<transfer::ReceiverLink>, absl::Status>>
      closes;
  bool wake = false;
};

}  // namespace baton::handoff::receiver_internal
