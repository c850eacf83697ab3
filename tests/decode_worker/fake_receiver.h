// A hand-off receiver whose events the test makes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"
#include "common/handoff/receiver.h"

namespace baton::decode_worker {

// Used by one thread. Refuses what the real one refuses, so that a wrong call
// shows.
class FakeReceiver final : public handoff::Receiver {
 public:
  enum class State { kReserved, kVerified, kCommitted, kAborted };
  struct Live {
    handoff::Expectation expectation;
    Attempt attempt = 1;
    State state = State::kReserved;
  };

  absl::StatusOr<handoff::Ticket> Reserve(
      const handoff::Expectation& expectation) override {
    if (!refuse_reserve.ok()) return refuse_reserve;
    const auto [it, added] =
        live.try_emplace(expectation.handoff, Live{.expectation = expectation});
    if (!added) return absl::AlreadyExistsError("hand-off id in use");
    return TicketOf(it->second);
  }
  absl::StatusOr<handoff::Ticket> Reticket(HandoffId handoff,
                                           Attempt attempt) override {
    const auto it = live.find(handoff);
    if (it == live.end() || it->second.state == State::kAborted) {
      return absl::NotFoundError("unknown hand-off");
    }
    Live& entry = it->second;
    if (entry.state == State::kCommitted) {
      return absl::FailedPreconditionError("committed");
    }
    if (attempt <= entry.attempt) return absl::AbortedError("not newer");
    entry.attempt = attempt;
    entry.state = State::kReserved;
    return TicketOf(entry);
  }
  handoff::CommitResult Commit(HandoffId handoff, Attempt attempt) override {
    const auto it = live.find(handoff);
    if (it == live.end() || it->second.state != State::kVerified ||
        it->second.attempt != attempt) {
      return handoff::CommitResult::kNotVerified;
    }
    it->second.state = State::kCommitted;
    ++commits;
    if (quiet_at_once) Quiet(handoff);
    return handoff::CommitResult::kCommitted;
  }
  void Abort(HandoffId handoff, absl::string_view) override {
    const auto it = live.find(handoff);
    if (it == live.end() || it->second.state == State::kCommitted ||
        it->second.state == State::kAborted) {
      return;
    }
    it->second.state = State::kAborted;
    ++aborts;
    if (quiet_at_once) Quiet(handoff);
  }
  std::vector<handoff::ReceiverEvent> TakeEvents() override {
    return std::exchange(events, {});
  }
  transfer::LinkAcceptor* acceptor() override { return nullptr; }
  handoff::ReceiverStats stats() const override { return {}; }

  // --- the test's side ---
  void Verify(HandoffId handoff, std::vector<float> last_logits) {
    Live& entry = live.at(handoff);
    CHECK(entry.state == State::kReserved) << "verified in another state";
    entry.state = State::kVerified;
    events.push_back({.kind = handoff::ReceiverEventKind::kVerified,
                      .handoff = handoff,
                      .attempt = entry.attempt,
                      .status = absl::OkStatus(),
                      .last_logits = std::move(last_logits),
                      .receive_us = 1000});
  }
  void Fail(HandoffId handoff, const absl::Status& status) {
    events.push_back({.kind = handoff::ReceiverEventKind::kFailed,
                      .handoff = handoff,
                      .attempt = live.at(handoff).attempt,
                      .status = status,
                      .last_logits = {}});
  }
  void Expire(HandoffId handoff, const absl::Status& status) {
    live.at(handoff).state = State::kAborted;
    events.push_back({.kind = handoff::ReceiverEventKind::kExpired,
                      .handoff = handoff,
                      .attempt = live.at(handoff).attempt,
                      .status = status,
                      .last_logits = {}});
  }
  void Quiet(HandoffId handoff) {
    events.push_back({.kind = handoff::ReceiverEventKind::kQuiet,
                      .handoff = handoff,
                      .status = absl::OkStatus(),
                      .last_logits = {}});
  }

  absl::flat_hash_map<HandoffId, Live> live;
  std::vector<handoff::ReceiverEvent> events;
  bool quiet_at_once = true;
  absl::Status refuse_reserve;
  int32_t commits = 0;
  int32_t aborts = 0;

 private:
  static handoff::Ticket TicketOf(const Live& entry) {
    return {.handoff = entry.expectation.handoff,
            .attempt = entry.attempt,
            .receiver = "decode-0",
            .receiver_incarnation = 7,
            .endpoints = {"inproc:decode-0"},
            .lease = absl::Seconds(10)};
  }
};

}  // namespace baton::decode_worker
