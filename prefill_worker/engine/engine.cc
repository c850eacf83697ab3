#include "prefill_worker/engine/engine.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/request/request.h"
#include "prefill_worker/engine/prompt_record.h"

namespace baton::prefill_worker {

using request::ErrorReason;
using request::MakeError;

absl::string_view PromptStateName(PromptState state) {
  switch (state) {
    case PromptState::kWaiting:
      return "waiting";
    case PromptState::kRunning:
      return "running";
    case PromptState::kComputed:
      return "computed";
    case PromptState::kSealed:
      return "sealed";
    case PromptState::kQuiescing:
      return "quiescing";
  }
  return "unknown";
}

Engine::Engine(const EngineOptions& options, EngineDependencies dependencies)
    : options_(options),
      deps_(std::move(dependencies)),
      scheduler_(options.scheduler) {
  CHECK(deps_.model != nullptr && deps_.store != nullptr &&
        deps_.pool != nullptr && deps_.sender != nullptr &&
        deps_.metrics != nullptr);
  Publish();
}

Engine::~Engine() = default;

Engine::Prompt* Engine::Find(const PromptObserver* observer) {
  for (const auto& [id, prompt] : prompts_) {
    if (prompt->observer.get() == observer) {
      return prompt.get();
    }
  }
  return nullptr;
}

void Engine::Attach(const PromptObserver* observer, handoff::Ticket ticket) {
  Prompt* const prompt = Find(observer);
  if (prompt == nullptr) {
    return;  // it has ended, and the caller has been or will be told so
  }
  if (ticket.handoff != prompt->request.handoff ||
      ticket.attempt != prompt->request.attempt) {
    End(*prompt,
        MakeError(
            absl::StatusCode::kAborted,
            absl::StrCat("the ticket is for hand-off ", ToHex(ticket.handoff),
                         " attempt ", ticket.attempt, ", expected attempt ",
                         prompt->request.attempt, " of ",
                         ToHex(prompt->request.handoff)),
            {.reason = ErrorReason::kStale}),
        SendEnds::kByCancel);
  } else if (prompt->ticket.has_value()) {
    End(*prompt,
        request::InvalidField("attach", "a ticket is attached already"),
        SendEnds::kByCancel);
  } else {
    prompt->ticket = std::move(ticket);
    prompt->attached = deps_.clock->Now();
    StartSends();
  }
  Publish();
}

void Engine::Cancel(const PromptObserver* observer, const absl::Status& reason,
                    std::optional<int64_t> since_step) {
  if (Prompt* const prompt = Find(observer); prompt != nullptr) {
    prompt->cancel_step = since_step.value_or(steps_);
    End(*prompt, reason, SendEnds::kByCancel);
    Publish();
  }
}

bool Engine::Iterate() {
  const bool had_events = HandleSenderEvents();
  EndOverdue();
  TellStarted();
  StartSends();
  const bool stepped = RunStep();
  Publish();
  return had_events || stepped;
}

bool Engine::HandleSenderEvents() {
  const std::vector<handoff::SenderEvent> events = deps_.sender->TakeEvents();
  for (const handoff::SenderEvent& event : events) {
    const auto it = by_key_.find({event.handoff, event.attempt});
    if (it == by_key_.end()) {
      ReportBug("prefill.sender_event",
                absl::StrCat("event for unknown hand-off ",
                             ToHex(event.handoff), " attempt ", event.attempt));
      continue;
    }
    Prompt& prompt = *prompts_.at(it->second);
    switch (event.kind) {
      case handoff::SenderEventKind::kCommitted:
        if (!prompt.ended_already()) {
          deps_.metrics->common().ObserveStage(
              "transfer", deps_.clock->Now() - prompt.sealed);
          prompt.observer->OnVerdict(/*committed=*/true);
          End(prompt, absl::OkStatus(), SendEnds::kByItself);
        }
        break;
      case handoff::SenderEventKind::kFailed:
        if (!prompt.ended_already()) {
          const ErrorReason reason = request::InfoOf(event.status).reason;
          if (reason == ErrorReason::kHandoffRejected ||
              reason == ErrorReason::kMismatch) {
            prompt.observer->OnVerdict(/*committed=*/false);
          }
          End(prompt, event.status, SendEnds::kByItself);
        }
        break;
      case handoff::SenderEventKind::kQuiet:
        prompt.sending = false;
        if (prompt.ended_already()) {
          Free(prompt);
        } else {
          // Only after kCommitted, kFailed or Cancel, each of which ends it.
          ReportBug("prefill.early_quiet", ToHex(event.handoff));
          End(prompt,
              MakeError(absl::StatusCode::kInternal,
                        "the sender stopped without a verdict",
                        {.reason = ErrorReason::kBug}),
              SendEnds::kByItself);
        }
        break;
    }
  }
  return !events.empty();
}

void Engine::EndOverdue() {
  const absl::Time now = deps_.clock->Now();
  for (auto it = prompts_.begin(); it != prompts_.end();) {
    Prompt& prompt = *it->second;
    ++it;  // End may erase the entry
    if (prompt.ended_already()) {
      continue;
    }
    if (now >= prompt.request.deadline) {
      End(prompt,
          MakeError(absl::StatusCode::kDeadlineExceeded,
                    absl::StrCat("the deadline passed while the prompt was ",
                                 PromptStateName(prompt.state)),
                    {.reason = ErrorReason::kDeadline}),
          SendEnds::kByCancel);
    } else if (prompt.state == PromptState::kComputed &&
               !prompt.ticket.has_value() &&
               now >= prompt.computed + options_.attach_timeout) {
      End(prompt,
          MakeError(absl::StatusCode::kDeadlineExceeded,
                    absl::StrCat("the computed prompt waited for Attach for ",
                                 absl::FormatDuration(options_.attach_timeout)),
                    {.reason = ErrorReason::kDeadline}),
          SendEnds::kByCancel);
    }
  }
}

void Engine::TellStarted() {
  int64_t ahead = 0;
  for (const PromptId id : scheduler_.arrivals()) {
    if (EtaFor(ahead) > options_.start_eta) {
      return;
    }
    Prompt& prompt = *prompts_.at(id);
    if (!prompt.told_started) {
      prompt.told_started = true;
      prompt.observer->OnStarted();
    }
    ahead += scheduler_.remaining_tokens(id);
  }
}

void Engine::StartSends() {
  for (auto it = prompts_.begin(); it != prompts_.end();) {
    Prompt& prompt = *it->second;
    ++it;  // End may erase the entry
    if (prompt.ended_already() || prompt.sending ||
        !prompt.ticket.has_value()) {
      continue;
    }
    // The sender knows hand-offs by id alone: an older attempt must be quiet.
    const auto first = by_key_.lower_bound({prompt.request.handoff, 0});
    if (first->second != prompt.id) {
      continue;
    }
    const absl::Status status =
        deps_.sender->Start({.handoff = prompt.request.handoff,
                             .attempt = prompt.request.attempt,
                             .ticket = *prompt.ticket,
                             .prompt_tokens = prompt.tokens(),
                             .sequence = prompt.sequence.view(),
                             .deadline = prompt.request.deadline});
    if (!status.ok()) {
      End(prompt, status, SendEnds::kByItself);
      continue;
    }
    prompt.sending = true;
    if (prompt.sequence.processed > 0) {
      deps_.sender->RowsComplete(prompt.request.handoff,
                                 prompt.sequence.processed);
    }
    if (prompt.state == PromptState::kComputed) {
      Seal(prompt);
    }
  }
}

bool Engine::RunStep() {
  const std::vector<Chunk> chunks = scheduler_.PlanStep();
  if (chunks.empty()) {
    return false;
  }
  const absl::Time begin = deps_.clock->Now();
  std::vector<model::Span> spans;
  spans.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    Prompt& prompt = *prompts_.at(chunk.prompt);
    if (prompt.state == PromptState::kWaiting) {
      --in_state_[static_cast<size_t>(prompt.state)];
      prompt.state = PromptState::kRunning;
      ++in_state_[static_cast<size_t>(prompt.state)];
      prompt.first_chunk = begin;
      deps_.pool->SetUse(prompt.owner, kv::BlockUse::kActive);
      if (!prompt.told_started) {
        prompt.told_started = true;
        prompt.observer->OnStarted();
      }
    }
    spans.push_back({.sequence = prompt.sequence.view(),
                     .first_position = chunk.first,
                     .tokens = prompt.ids_of(chunk),
                     .logits = chunk.final ? model::LogitsWanted::kLast
                                           : model::LogitsWanted::kNone});
  }
  Publish();
  BATON_FAULT_POINT("prefill.before_step");
  const auto inputs = deps_.model->Plan(spans);
  if (!inputs.ok()) {
    FailStep(chunks, inputs.status());
    return true;
  }
  const absl::Status status = deps_.model->Run(*inputs, deps_.store, &logits_);
  ++steps_;
  BATON_FAULT_POINT("prefill.after_step");
  if (!status.ok()) {
    FailStep(chunks, status);
    return true;
  }
  const absl::Duration duration = deps_.clock->Now() - begin;
  deps_.metrics->common().ObserveStep(inputs->num_tokens, duration);
  if (duration > absl::ZeroDuration()) {
    // Steps of few tokens say little about the rate: weight by size.
    const double weight = std::min(0.3, inputs->num_tokens / 256.0);
    const double rate = inputs->num_tokens / absl::ToDoubleSeconds(duration);
    tokens_per_second_ += weight * (rate - tokens_per_second_);
  }
  const auto vocab = static_cast<size_t>(deps_.model->vocab_size());
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    FinishChunk(chunk, chunk.final ? &logits_[row * vocab] : nullptr);
    row += chunk.final ? 1 : 0;
  }
  return true;
}

void Engine::FinishChunk(const Chunk& chunk, const float* logits) {
  scheduler_.Commit(chunk);
  Prompt& prompt = *prompts_.at(chunk.prompt);
  prompt.sequence.Commit(chunk.tokens);
  const absl::Span<const int32_t> ids = prompt.ids_of(chunk);
  prompt.processed_ids.Update(
      {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])});
  prompt.observer->OnProgress(static_cast<int32_t>(prompt.sequence.processed));
  if (prompt.sending) {
    deps_.sender->RowsComplete(prompt.request.handoff,
                               prompt.sequence.processed);
  }
  if (!chunk.final) {
    return;
  }
  prompt.last_logits.assign(logits, logits + deps_.model->vocab_size());
  prompt.computed = deps_.clock->Now();
  --in_state_[static_cast<size_t>(prompt.state)];
  prompt.state = PromptState::kComputed;
  ++in_state_[static_cast<size_t>(prompt.state)];
  auto& metrics = deps_.metrics->common();
  metrics.ObserveStage("queue", prompt.first_chunk - prompt.admitted);
  metrics.ObserveStage("prefill", prompt.computed - prompt.first_chunk);
  if (prompt.sending) {
    Seal(prompt);
  }
}

void Engine::FailStep(const std::vector<Chunk>& chunks,
                      const absl::Status& status) {
  ReportBug("prefill.step", status.ToString());
  for (const Chunk& chunk : chunks) {
    End(*prompts_.at(chunk.prompt),
        MakeError(absl::StatusCode::kInternal,
                  absl::StrCat("the prefill step failed: ", status.message()),
                  {.reason = ErrorReason::kBug}),
        SendEnds::kByCancel);
  }
}

void Engine::Seal(Prompt& prompt) {
  BATON_FAULT_POINT("prefill.before_seal");
  const int64_t prefill_us =
      absl::ToInt64Microseconds(prompt.computed - prompt.admitted);
  prompt.sealed = deps_.clock->Now();
  deps_.metrics->common().ObserveStage(
      "attach",
      std::max(absl::ZeroDuration(), prompt.attached - prompt.computed));
  --in_state_[static_cast<size_t>(prompt.state)];
  prompt.state = PromptState::kSealed;
  ++in_state_[static_cast<size_t>(prompt.state)];
  deps_.sender->Seal(prompt.request.handoff,
                     {.prompt_hash = prompt.processed_ids.Finish(),
                      .last_logits = std::move(prompt.last_logits),
                      .prefill_us = prefill_us});
  prompt.observer->OnSealed(prefill_us);
}

void Engine::End(Prompt& prompt, const absl::Status& status, SendEnds send) {
  CHECK(!prompt.ended_already());
  scheduler_.Remove(prompt.id);
  prompt.ended = deps_.clock->Now();
  if (send == SendEnds::kByCancel && !prompt.cancel_step.has_value()) {
    prompt.cancel_step = steps_;
  }
  LogEnd(prompt, status);
  if (status.ok()) {
    deps_.metrics->CountPrompt(Outcome::kCommitted);
  } else {
    deps_.metrics->common().CountHandoffFailure(status);
    deps_.metrics->CountPrompt(absl::IsCancelled(status) ? Outcome::kCancelled
                                                         : Outcome::kFailed);
  }
  --in_state_[static_cast<size_t>(prompt.state)];
  prompt.state = PromptState::kQuiescing;
  ++in_state_[static_cast<size_t>(prompt.state)];
  const std::shared_ptr<PromptObserver> observer = std::move(prompt.observer);
  prompt.observer = nullptr;
  observer->OnFinished(status);
  // No step is in flight here: steps run to their end on this thread.
  if (!prompt.sending) {
    Free(prompt);
  } else if (send == SendEnds::kByCancel) {
    deps_.sender->Cancel(prompt.request.handoff, status.message());
  }
}

void Engine::Free(Prompt& prompt) {
  CHECK(prompt.ended_already() && !prompt.sending);
  if (options_.poison_free_pages) {
    for (const BlockId block : prompt.sequence.blocks) {
      deps_.store->PoisonBlock(block);
    }
    deps_.store->PoisonSlot(prompt.sequence.slot);
  }
  deps_.pool->Release(prompt.owner);
  if (prompt.cancel_step.has_value()) {
    deps_.metrics->common().ObserveCancelRelease(steps_ - *prompt.cancel_step);
  }
  --in_state_[static_cast<size_t>(PromptState::kQuiescing)];
  by_key_.erase({prompt.request.handoff, prompt.request.attempt});
  prompts_.erase(prompt.id);
}

void Engine::LogEnd(const Prompt& prompt, const absl::Status& status) const {
  const auto ms = [](absl::Time from, absl::Time to) {
    return from == absl::Time() || to == absl::Time()
               ? int64_t{-1}
               : absl::ToInt64Milliseconds(to - from);
  };
  LogInfo("prompt_finished",
          {{"request", ToHex(prompt.request.request)},
           {"handoff", ToHex(prompt.request.handoff)},
           {"attempt", prompt.request.attempt},
           {"tokens", prompt.tokens()},
           {"processed", prompt.sequence.processed},
           {"state", PromptStateName(prompt.state)},
           {"queue_ms", ms(prompt.admitted, prompt.first_chunk)},
           {"prefill_ms", ms(prompt.first_chunk, prompt.computed)},
           {"attach_ms", ms(prompt.admitted, prompt.attached)},
           {"transfer_ms", ms(prompt.sealed, prompt.ended)},
           {"total_ms", ms(prompt.admitted, prompt.ended)},
           {"status", status.ToString()}});
}

void Engine::BeginDrain() {
  draining_ = true;
  Publish();
}

void Engine::EndAll() {
  draining_ = true;
  for (auto it = prompts_.begin(); it != prompts_.end();) {
    Prompt& prompt = *it->second;
    ++it;  // End may erase the entry
    if (!prompt.ended_already()) {
      End(prompt,
          MakeError(absl::StatusCode::kUnavailable, "the worker stops",
                    {.reason = ErrorReason::kDraining}),
          SendEnds::kByCancel);
    }
  }
  Publish();
}

void Engine::Audit() {
  auto& metrics = deps_.metrics->common();
  metrics.SetOrphaned(deps_.pool->orphaned());
  if (const absl::Status status = deps_.pool->Audit(); !status.ok()) {
    ReportBug("prefill.ledger", status.ToString());
  }
  const absl::Time now = deps_.clock->Now();
  for (const auto& [id, prompt] : prompts_) {
    if (prompt->ended_already() && !prompt->reported_unquiet &&
        now - prompt->ended > options_.quiet_limit) {
      prompt->reported_unquiet = true;
      ReportBug("prefill.unquiet", ToHex(prompt->request.handoff));
    }
  }
}

void Engine::SetGauges() {
  auto& metrics = deps_.metrics->common();
  const EngineLoad load = this->load();
  metrics.SetBlocks(load.counts);
  for (size_t i = 0; i < load.in_state.size(); ++i) {
    metrics.SetSequences(PromptStateName(static_cast<PromptState>(i)),
                         load.in_state[i]);
  }
  deps_.metrics->SetBacklog(load.backlog_tokens);
  const handoff::SenderStats sent = deps_.sender->stats();
  for (const auto& [component, bytes] : sent.bytes) {
    metrics.SetHandoffBytes(component, bytes);
  }
  metrics.SetLinksUp(sent.links_up);
}

void Engine::Publish() {
  EngineLoad load{.counts = deps_.pool->counts(),
                  .sequences = static_cast<int32_t>(prompts_.size()),
                  .in_state = in_state_,
                  .steps = steps_,
                  .backlog_tokens = scheduler_.backlog_tokens(),
                  .tokens_per_second = tokens_per_second_,
                  .draining = draining_};
  MutexLock lock(&mu_);
  load_ = load;
}

EngineLoad Engine::load() const {
  MutexLock lock(&mu_);
  return load_;
}

}  // namespace baton::prefill_worker
