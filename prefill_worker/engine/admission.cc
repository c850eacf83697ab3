// Admission: everything about a prompt is checked at the door, and its memory
// is taken at once or not at all.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/kv/state_format.h"
#include "common/request/request.h"
#include "prefill_worker/engine/engine.h"
#include "prefill_worker/engine/prompt_record.h"

namespace baton::prefill_worker {

using request::ErrorReason;
using request::MakeError;

absl::Status Engine::CheckRequest(const PromptRequest& request) const {
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, "the worker drains",
                     {.reason = ErrorReason::kDraining});
  }
  const auto tokens = static_cast<int64_t>(request.prompt_ids.size());
  if (tokens == 0) {
    return request::InvalidField("prompt_ids", "empty, expected >= 1 token");
  }
  const int32_t vocab = deps_.model->vocab_size();
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= vocab) {
      return request::InvalidField(
          "prompt_ids",
          absl::StrCat("token id ", id, ", expected 0 to ", vocab - 1));
    }
  }
  if (request.model_digest != options_.model_digest) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the router serves model ", HexOf(request.model_digest),
                     ", this worker has ", HexOf(options_.model_digest)),
        {.reason = ErrorReason::kMismatch, .field = "model_digest"});
  }
  const Sha256Digest hash = HashTokenIds(request.prompt_ids);
  if (request.prompt_hash != hash) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("prompt hash of ", tokens,
                     " tokens disagrees: the router has ",
                     HexOf(request.prompt_hash), ", this worker ", HexOf(hash)),
        {.reason = ErrorReason::kMismatch, .field = "prompt_hash"});
  }
  if (tokens > deps_.model->max_positions()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("a prompt of ", tokens, " tokens exceeds the context of ",
                     deps_.model->max_positions(), " positions"),
        {.reason = ErrorReason::kContextExceeded, .field = "prompt_ids"});
  }
  const kv::BlockCounts counts = deps_.pool->counts();
  if (kv::BlocksFor(tokens) > counts.total ||
      tokens > options_.max_backlog_tokens) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("a prompt of ", tokens, " tokens never fits: it needs ",
                     kv::BlocksFor(tokens), " of ", counts.total,
                     " blocks, and the backlog holds ",
                     options_.max_backlog_tokens, " tokens"),
        {.reason = ErrorReason::kNeverFits, .field = "prompt_ids"});
  }
  if (request.deadline <= deps_.clock->Now()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline has passed before admission",
                     {.reason = ErrorReason::kDeadline});
  }
  const auto it = by_key_.lower_bound({request.handoff, request.attempt});
  if (it != by_key_.end() && it->first.first == request.handoff) {
    return MakeError(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("hand-off ", ToHex(request.handoff), " attempt ",
                     it->first.second, " is here already, got attempt ",
                     request.attempt),
        {.reason = ErrorReason::kStale});
  }
  return absl::OkStatus();
}

// Two attempts of one hand-off never run here side by side (hazards P2): the
// router that starts the newer one has given the older one up.
void Engine::SupersedeOlder(const PromptRequest& request) {
  for (auto it = by_key_.lower_bound({request.handoff, 0});
       it != by_key_.end() && it->first.first == request.handoff;) {
    Prompt& older = *prompts_.at(it->second);
    ++it;  // End may erase the entry
    if (!older.ended_already()) {
      End(older,
          MakeError(absl::StatusCode::kAborted,
                    absl::StrCat("superseded by attempt ", request.attempt),
                    {.reason = ErrorReason::kStale}),
          SendEnds::kByCancel);
    }
  }
}

absl::Status Engine::CheckCapacity(const PromptRequest& request) {
  const auto tokens = static_cast<int64_t>(request.prompt_ids.size());
  const int64_t backlog = scheduler_.backlog_tokens();
  if (backlog + tokens > options_.max_backlog_tokens) {
    return Overloaded(absl::StrCat("the backlog of ", backlog, " tokens plus ",
                                   tokens, " exceeds ",
                                   options_.max_backlog_tokens));
  }
  const kv::BlockCounts counts = deps_.pool->counts();
  if (kv::BlocksFor(tokens) > counts.free || counts.slots_free < 1) {
    return Overloaded(absl::StrCat(
        "the prompt needs ", kv::BlocksFor(tokens), " blocks and 1 slot; ",
        counts.free, " blocks and ", counts.slots_free, " slots are free"));
  }
  return absl::OkStatus();
}

absl::Status Engine::Overloaded(absl::string_view what) const {
  // About when the backlog will have shrunk by half, spread over a factor of
  // three so that refused callers do not return together (hazards P22).
  const absl::Duration half =
      std::clamp(EtaFor(scheduler_.backlog_tokens()) / 2,
                 absl::Milliseconds(50), absl::Seconds(2));
  const absl::Duration delay = half * (0.5 + deps_.random->Uniform());
  return MakeError(absl::StatusCode::kResourceExhausted, what,
                   {.reason = ErrorReason::kOverloaded,
                    .retry_delay_ms = std::max<int64_t>(
                        1, absl::ToInt64Milliseconds(delay))});
}

absl::Duration Engine::EtaFor(int64_t tokens_ahead) const {
  return absl::Seconds(static_cast<double>(tokens_ahead) / tokens_per_second_);
}

void Engine::Admit(PromptRequest request,
                   std::shared_ptr<PromptObserver> observer) {
  BATON_FAULT_POINT("prefill.admit");
  absl::Status status = CheckRequest(request);
  if (status.ok()) {
    SupersedeOlder(request);
    status = CheckCapacity(request);
  }
  if (!status.ok()) {
    deps_.metrics->CountPrompt(Outcome::kRefused);
    LogInfo("prompt_refused", {{"request", ToHex(request.request)},
                               {"handoff", ToHex(request.handoff)},
                               {"attempt", request.attempt},
                               {"tokens", request.prompt_ids.size()},
                               {"status", status.ToString()}});
    observer->OnFinished(status);
    return;
  }
  // Mutations of what is processed after the door has checked it: only the
  // manifest's hash can tell (hazards P14 and the like).
  constexpr ptrdiff_t kMutated = 200;
  if (BATON_FAULT("prefill.cut_first_tokens", "") &&
      std::ssize(request.prompt_ids) > kMutated) {
    request.prompt_ids.erase(request.prompt_ids.begin(),
                             request.prompt_ids.begin() + kMutated);
  }
  if (BATON_FAULT("prefill.replace_first_tokens", "")) {
    for (ptrdiff_t i = 0;
         i < std::min(kMutated, std::ssize(request.prompt_ids)); ++i) {
      int32_t& id = request.prompt_ids[static_cast<size_t>(i)];
      id = (id + 1) % deps_.model->vocab_size();
    }
  }
  auto holding = deps_.pool->Acquire(
      kv::BlocksFor(static_cast<int64_t>(request.prompt_ids.size())), 1,
      kv::BlockUse::kReservedIdle);
  CHECK_OK(holding);  // CheckCapacity looked, and nothing ran in between

  auto prompt = std::make_unique<Prompt>();
  prompt->id = PromptId{next_prompt_++};
  prompt->observer = observer;
  prompt->owner = holding->owner;
  prompt->sequence.blocks = std::move(holding->blocks);
  prompt->sequence.slot = holding->slots.front();
  prompt->admitted = deps_.clock->Now();
  prompt->request = std::move(request);
  prompt->request.deadline = std::min(prompt->request.deadline,
                                      prompt->admitted + options_.max_lifetime);
  deps_.store->ResetSlot(prompt->sequence.slot);

  const int64_t ahead = scheduler_.backlog_tokens();
  scheduler_.Add(prompt->id, prompt->tokens());
  by_key_[{prompt->request.handoff, prompt->request.attempt}] = prompt->id;
  ++in_state_[static_cast<size_t>(prompt->state)];
  const HandoffId handoff = prompt->request.handoff;
  prompts_[prompt->id] = std::move(prompt);
  if (deps_.on_admitted != nullptr) {
    deps_.on_admitted(handoff);
  }
  Publish();
  observer->OnAdmitted(EtaFor(ahead), ahead);
}

}  // namespace baton::prefill_worker
