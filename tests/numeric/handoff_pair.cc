#include "tests/numeric/handoff_pair.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace baton::numeric {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr char kListener[] = "receiver";

// Takes events until one of `kind` comes; another failure ends the wait.
template <typename Side, typename Event, typename Kind>
absl::StatusOr<Event> WaitFor(Side* side, Kind kind, Kind failed) {
  const absl::Time deadline = Clock::Real()->Now() + kTimeout;
  while (Clock::Real()->Now() < deadline) {
    for (Event& event : side->TakeEvents()) {
      if (event.kind == kind) return event;
      if (event.kind == failed) return event.status;
    }
    absl::SleepFor(absl::Microseconds(50));
  }
  return absl::DeadlineExceededError("the hand-off stands still");
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffPair>> HandoffPair::Create(Rig* from,
                                                                 Rig* to) {
  auto pair = std::unique_ptr<HandoffPair>(new HandoffPair(from, to));
  const Sha256Digest format = to->store().format().Hash();
  ASSIGN_OR_RETURN(pair->receiver_,
                   handoff::CreateReceiver(
                       {.identity = {.worker = "receiver",
                                     .incarnation = 2,
                                     .state_format_hash = format},
                        .endpoints = {absl::StrCat("inproc:", kListener)},
                        .store = &to->store(),
                        .vocab_size = to->vocab()}));
  RETURN_IF_ERROR(
      pair->network_.Listen(kListener, pair->receiver_->acceptor()).status());
  ASSIGN_OR_RETURN(
      pair->sender_,
      handoff::CreateSender({.identity = {.worker = "sender",
                                          .incarnation = 1,
                                          .state_format_hash = format},
                             .store = &from->store(),
                             .dialer = &pair->network_}));
  return pair;
}

HandoffPair::~HandoffPair() {
  sender_.reset();
  network_.StopListening(kListener);
}

absl::StatusOr<HandoffPair::Arrived> HandoffPair::Move(
    absl::Span<const int32_t> prompt, int64_t chunk, int64_t max_positions) {
  using handoff::ReceiverEvent;
  using handoff::ReceiverEventKind;
  using handoff::SenderEvent;
  using handoff::SenderEventKind;
  const HandoffId id{7, next_id_++};
  const auto tokens = static_cast<int64_t>(prompt.size());
  const absl::Time deadline = Clock::Real()->Now() + absl::Minutes(5);

  Arrived arrived;
  arrived.sequence = to_->NewSequence(max_positions);
  to_->store().ResetSlot(arrived.sequence.state.slot);
  ASSIGN_OR_RETURN(
      const handoff::Ticket ticket,
      receiver_->Reserve({.handoff = id,
                          .prompt_tokens = tokens,
                          .prompt_hash = HashTokenIds(prompt),
                          .sequence = arrived.sequence.state.view(),
                          .deadline = deadline}));
  Rig::Sequence source = from_->NewSequence(tokens);
  RETURN_IF_ERROR(sender_->Start({.handoff = id,
                                  .attempt = ticket.attempt,
                                  .ticket = ticket,
                                  .prompt_tokens = tokens,
                                  .sequence = source.state.view(),
                                  .deadline = deadline}));
  std::vector<float> logits;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    ASSIGN_OR_RETURN(
        logits,
        from_->Feed(&source,
                    prompt.subspan(static_cast<size_t>(first),
                                   static_cast<size_t>(count)),
                    count,
                    first + count == tokens ? model::LogitsWanted::kLast
                                            : model::LogitsWanted::kNone));
    sender_->RowsComplete(id, first + count);
  }
  sender_->Seal(id,
                {.prompt_hash = HashTokenIds(prompt), .last_logits = logits});
  ASSIGN_OR_RETURN(ReceiverEvent verified,
                   (WaitFor<handoff::Receiver, ReceiverEvent>(
                       receiver_.get(), ReceiverEventKind::kVerified,
                       ReceiverEventKind::kFailed)));
  arrived.last_logits = std::move(verified.last_logits);
  if (receiver_->Commit(id, ticket.attempt) !=
      handoff::CommitResult::kCommitted) {
    return absl::InternalError("not committed");
  }
  arrived.sequence.state.processed = tokens;
  RETURN_IF_ERROR((WaitFor<handoff::Receiver, ReceiverEvent>(
                       receiver_.get(), ReceiverEventKind::kQuiet,
                       ReceiverEventKind::kFailed))
                      .status());
  RETURN_IF_ERROR(
      (WaitFor<handoff::Sender, SenderEvent>(
           sender_.get(), SenderEventKind::kQuiet, SenderEventKind::kFailed))
          .status());
  from_->Release(source);
  return arrived;
}

}  // namespace baton::numeric
