#include "decode_worker/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;

constexpr absl::Duration kReaderCheckInterval = absl::Milliseconds(100);
// A call that was cut gets its status this long, then the transport is closed:
// the status of a stream that nobody reads never leaves.
constexpr absl::Duration kCutGrace = absl::Seconds(5);

absl::Status BugStatus(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kInternal, message,
                            {.reason = ErrorReason::kBug, .field = ""});
}

absl::Status WithReason(const absl::Status& status, ErrorReason reason) {
  if (request::InfoOf(status).reason != ErrorReason::kUnspecified) {
    return status;
  }
  return request::MakeError(status.code(), status.message(),
                            {.reason = reason, .field = ""});
}

std::vector<int32_t> EndIds(const request::SamplingParams& params,
                            const std::vector<int32_t>& eos_token_ids) {
  std::vector<int32_t> ids = params.stop_token_ids;
  if (!params.ignore_eos) {
    ids.insert(ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      scheduler_({.pool = options_.pool,
                  .max_seats = options_.max_seats,
                  .max_positions = options_.model->max_positions(),
                  .random = options_.random}),
      next_reader_check_(options_.clock->Now()) {
  PublishStats();
}

Engine::~Engine() = default;

Engine::Request* Engine::Find(const RequestOutput* output) {
  const auto it = requests_.find(output);
  return it == requests_.end() ? nullptr : it->second.get();
}

Engine::Request* Engine::Find(HandoffId handoff) {
  const auto it = by_handoff_.find(handoff);
  return it == by_handoff_.end() ? nullptr : it->second;
}

bool Engine::Start(StartRequest start, std::shared_ptr<RequestOutput> output) {
  open_.push_back({.output = output, .cut_at = std::nullopt});
  const absl::Status status = Admit(std::move(start), output);
  if (!status.ok()) output->End(status);
  news_.push_back(std::move(output));
  return status.ok();
}

absl::Status Engine::Admit(StartRequest start,
                           const std::shared_ptr<RequestOutput>& output) {
  if (draining_) {
    return request::MakeError(absl::StatusCode::kUnavailable,
                              "this decode worker drains",
                              {.reason = ErrorReason::kDraining, .field = ""});
  }
  const absl::Time now = options_.clock->Now();
  if (start.deadline <= now) {
    return request::MakeError(absl::StatusCode::kDeadlineExceeded,
                              "the request's deadline passed before admission",
                              {.reason = ErrorReason::kDeadline, .field = ""});
  }
  if (Find(start.handoff) != nullptr) {
    return request::MakeError(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("hand-off ", ToHex(start.handoff), " is in use"),
        {.reason = ErrorReason::kStale, .field = ""});
  }
  const int64_t prompt_tokens = static_cast<int64_t>(start.prompt_ids.size());
  auto request = std::make_unique<Request>();
  ASSIGN_OR_RETURN(request->reservation,
                   scheduler_.Reserve(prompt_tokens, start.sampling.max_tokens,
                                      start.sampling.n));
  request->first_table = request->reservation.TableOf(0);
  for (const int32_t slot : request->reservation.slots) {
    options_.store->ResetSlot(slot);
  }
  absl::StatusOr<handoff::Ticket> ticket = options_.receiver->Reserve({
      .handoff = start.handoff,
      .prompt_tokens = prompt_tokens,
      .prompt_hash = start.prompt_hash,
      .sequence = {.blocks = request->first_table,
                   .slot = request->reservation.slots[0]},
      .deadline = start.deadline,
  });
  if (!ticket.ok()) {
    scheduler_.Release(request->reservation);
    return WithReason(ticket.status(), ErrorReason::kStale);
  }
  request->reserved_at = now;
  request->attempt = ticket->attempt;
  request->end_ids = EndIds(start.sampling, options_.eos_token_ids);
  request->start = std::move(start);
  request->output = output;
  output->Push(ReservedEvent{*std::move(ticket)});
  stats_.reserved += request->reservation.need.slots;
  by_handoff_[request->start.handoff] = request.get();
  requests_[output.get()] = std::move(request);
  return absl::OkStatus();
}

void Engine::Reticket(const RequestOutput* output, Attempt attempt) {
  Request* const request = Find(output);
  if (request == nullptr || request->phase == Phase::kQuiescing) return;
  if (request->phase == Phase::kReserved) {
    absl::StatusOr<handoff::Ticket> ticket =
        options_.receiver->Reticket(request->start.handoff, attempt);
    if (!ticket.ok()) {
      EndRequest(request, WithReason(ticket.status(), ErrorReason::kStale));
      return;
    }
    request->attempt = attempt;
    request->reserved_at = options_.clock->Now();
    request->output->Push(ReticketedEvent{.ticket = *std::move(ticket)});
  } else {
    request->output->Push(
        ReticketedEvent{.ticket = {}, .already_committed = true});
  }
  MarkNews(request);
}

void Engine::Cancel(const RequestOutput* output, const absl::Status& status,
                    std::optional<int64_t> since_step) {
  Request* const request = Find(output);
  if (request != nullptr && request->phase != Phase::kQuiescing) {
    request->cancel_step = since_step.value_or(stats_.steps);
    EndRequest(request, status);
  }
}

bool Engine::Iterate() {
  for (handoff::ReceiverEvent& event : options_.receiver->TakeEvents()) {
    HandleEvent(std::move(event));
  }
  CheckDeadlines();
  CheckReaders();
  TellNews();  // commits and first tokens do not wait for the step
  const bool stepped = RunStep();
  TellNews();
  PublishStats();
  return stepped;
}

void Engine::TellNews() {
  if (news_.empty()) return;
  for (const std::shared_ptr<RequestOutput>& output : news_) {
    if (Request* const request = Find(output.get())) request->has_news = false;
  }
  if (options_.notify) options_.notify(&news_);
  news_.clear();
}

void Engine::HandleEvent(handoff::ReceiverEvent event) {
  Request* const request = Find(event.handoff);
  if (request == nullptr) return;  // refused or forgotten meanwhile
  switch (event.kind) {
    case handoff::ReceiverEventKind::kVerified:
      if (request->phase == Phase::kReserved &&
          event.attempt == request->attempt) {
        Commit(request, event);
      }
      return;
    case handoff::ReceiverEventKind::kFailed:
      options_.metrics->worker()->CountHandoffFailure(event.status);
      if (request->phase == Phase::kReserved &&
          event.attempt == request->attempt) {
        request->output->Push(HandoffFailedEvent{
            .attempt = event.attempt,
            .status = WithReason(event.status, ErrorReason::kWorkerLost)});
        MarkNews(request);
      }
      return;
    case handoff::ReceiverEventKind::kExpired: {
      options_.metrics->worker()->CountHandoffFailure(event.status);
      if (request->phase != Phase::kReserved) return;
      const bool deadline =
          request::InfoOf(event.status).reason == ErrorReason::kDeadline;
      EndRequest(request,
                 deadline ? request::MakeError(
                                absl::StatusCode::kDeadlineExceeded,
                                "the deadline passed before the hand-off "
                                "was complete",
                                {.reason = ErrorReason::kDeadline, .field = ""})
                          : request::MakeError(
                                absl::StatusCode::kAborted,
                                absl::StrCat("the reservation's lease ended: ",
                                             event.status.message()),
                                {.reason = ErrorReason::kStale, .field = ""}));
      return;
    }
    case handoff::ReceiverEventKind::kQuiet:
      request->quiet = true;
      ReleaseEnded(request);
      return;
  }
}

void Engine::Commit(Request* request, const handoff::ReceiverEvent& event) {
  BATON_FAULT_POINT("decode.before_commit");
  if (options_.receiver->Commit(request->start.handoff, event.attempt) !=
      handoff::CommitResult::kCommitted) {
    return;  // a link or a lease was faster; its event says so
  }
  CHECK_EQ(static_cast<int32_t>(event.last_logits.size()),
           options_.model->vocab_size());
  request->phase = Phase::kRunning;
  const absl::Time now = options_.clock->Now();
  request->committed_at = now;
  const absl::Duration receive = absl::Microseconds(event.receive_us);
  const absl::Duration commit =
      std::max(absl::ZeroDuration(), now - request->reserved_at - receive);
  options_.metrics->worker()->ObserveStage(kReceiveStage, receive);
  options_.metrics->worker()->ObserveStage(kCommitStage, commit);
  request->output->Push(
      CommittedEvent{.attempt = event.attempt,
                     .receive_us = event.receive_us,
                     .commit_us = absl::ToInt64Microseconds(commit)});
  MarkNews(request);
  StartSamples(request, event.last_logits);
  PublishStats();
  BATON_FAULT_POINT("decode.after_commit");
}

void Engine::StartSamples(Request* request,
                          absl::Span<const float> last_logits) {
  const StartRequest& start = request->start;
  std::vector<SampleMemory> memory = scheduler_.Activate(request->reservation);
  stats_.reserved -= request->reservation.need.slots;
  for (size_t i = 0; i < memory.size(); ++i) {
    request->samples.push_back(std::make_unique<Sample>(Sample::Config{
        .sampler = {.params = &start.sampling,
                    .sample_index = static_cast<int32_t>(i),
                    .prompt_ids = start.prompt_ids,
                    .end_ids = &request->end_ids,
                    .top_logprobs = start.logprobs.value_or(0),
                    .want_logprobs = start.logprobs.has_value()},
        .memory = std::move(memory[i]),
        .prompt_tokens = static_cast<int64_t>(start.prompt_ids.size()),
        .vocabulary = options_.vocabulary,
        .stop_set = start.stop_set}));
  }
  request->running = static_cast<int32_t>(request->samples.size());
  bool sampled = true;
  for (const auto& sample : request->samples) {
    sampled = sampled && Advance(request, sample.get(), last_logits);
    if (!sampled) break;
    if (sample->ended()) continue;
    if (sample->index() > 0) {
      model::Fork(request->samples[0]->state(), &sample->state(),
                  options_.store);
    }
    batch_.push_back({.request = request, .sample = sample.get()});
  }
  if (!sampled) {
    EndRequest(request, BugStatus("the hand-off's logits have no candidate"));
    return;
  }
  FinishIfDone(request);
}

bool Engine::Advance(Request* request, Sample* sample,
                     absl::Span<const float> logits) {
  const Sample::Outcome outcome =
      sample->Advance(logits, &scratch_, request->output.get());
  if (outcome == Sample::Outcome::kNoCandidate) {
    ReportBug("decode_engine.no_candidate", ToHex(request->start.request));
    return false;
  }
  ++request->output_tokens;
  ++stats_.sampled_tokens;
  options_.metrics->CountSampled(1);
  if (outcome == Sample::Outcome::kEnded) --request->running;
  MarkNews(request);
  return true;
}

bool Engine::RunStep() {
  if (batch_.empty()) return false;
  PublishStats();
  BATON_FAULT_POINT("decode.before_step");
  spans_.clear();
  for (const Seat& seat : batch_) {
    const model::SequenceState& state = seat.sample->state();
    spans_.push_back(
        {.sequence = state.view(),
         .first_position = state.processed,
         .tokens = absl::MakeConstSpan(&seat.sample->next_token(), 1),
         .logits = model::LogitsWanted::kLast});
  }
  const absl::Time begin = options_.clock->Now();
  absl::StatusOr<model::StepInputs> inputs = options_.model->Plan(spans_);
  const absl::Status status =
      inputs.ok() ? options_.model->Run(*inputs, options_.store, &logits_)
                  : inputs.status();
  if (!status.ok()) {
    // The cached state of every sequence in the step is unknown now.
    ReportBug("decode_engine.step", status.ToString());
    std::vector<Request*> failed;
    for (const Seat& seat : batch_) failed.push_back(seat.request);
    std::sort(failed.begin(), failed.end());
    failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
    for (Request* const request : failed) {
      EndRequest(request, BugStatus(absl::StrCat("decode step failed: ",
                                                 status.message())));
    }
    return true;
  }
  const int64_t tokens = static_cast<int64_t>(batch_.size());
  ++stats_.steps;
  stats_.processed_tokens += tokens;
  options_.metrics->worker()->ObserveStep(tokens,
                                          options_.clock->Now() - begin);

  const size_t vocab = static_cast<size_t>(options_.model->vocab_size());
  std::vector<Request*> touched;  // with a sample that ended or failed
  std::vector<Request*> broken;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const Seat& seat = batch_[i];
    seat.sample->state().Commit(1);
    const absl::Span<const float> row(logits_.data() + i * vocab, vocab);
    if (!Advance(seat.request, seat.sample, row)) {
      broken.push_back(seat.request);
    } else if (seat.sample->ended()) {
      touched.push_back(seat.request);
    }
  }
  if (touched.empty() && broken.empty()) return true;
  batch_.erase(std::remove_if(batch_.begin(), batch_.end(),
                              [](const Seat& s) { return s.sample->ended(); }),
               batch_.end());
  for (std::vector<Request*>* list : {&touched, &broken}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  for (Request* const request : touched) {
    if (!std::binary_search(broken.begin(), broken.end(), request)) {
      FinishIfDone(request);
    }
  }
  for (Request* const request : broken) {
    EndRequest(request, BugStatus("a step's logits have no candidate"));
  }
  return true;
}

void Engine::FinishIfDone(Request* request) {
  if (request->running == 0) {
    request->phase = Phase::kQuiescing;
    request->output->End(absl::OkStatus());
    LogEnd(*request, absl::OkStatus());
  }
  ReleaseEnded(request);
}

void Engine::EndRequest(Request* request, const absl::Status& status) {
  CHECK(!status.ok()) << "EndRequest takes an error";
  if (!request->cancel_step.has_value()) request->cancel_step = stats_.steps;
  if (request->phase == Phase::kReserved) {
    options_.receiver->Abort(request->start.handoff, status.message());
    stats_.reserved -= request->reservation.need.slots;
  }
  batch_.erase(
      std::remove_if(batch_.begin(), batch_.end(),
                     [request](const Seat& s) { return s.request == request; }),
      batch_.end());
  request->running = 0;
  request->phase = Phase::kQuiescing;
  request->output->End(status);
  MarkNews(request);
  LogEnd(*request, status);
  ReleaseEnded(request);
}

void Engine::ReleaseEnded(Request* request) {
  // A link thread may still scatter into the memory of an uncommitted attempt;
  // steps have completed when Iterate gets here.
  if (!request->quiet) return;
  if (request->phase == Phase::kReserved) return;
  const bool over = request->phase == Phase::kQuiescing;
  if (request->samples.empty()) {  // never committed
    if (options_.poison_free_pages) {
      Poison(request->reservation.blocks, 0, request->reservation.slots[0]);
    }
    scheduler_.Release(request->reservation);
  }
  const auto releasable = [over](const std::unique_ptr<Sample>& sample) {
    return over || sample->ended();
  };
  for (const std::unique_ptr<Sample>& sample : request->samples) {
    if (!releasable(sample)) continue;
    if (options_.poison_free_pages) {
      // Shared blocks go with the last sample of the request.
      Poison(sample->memory().blocks,
             over ? 0 : request->reservation.need.shared_blocks,
             sample->memory().slot);
    }
    scheduler_.Release(sample->memory());
  }
  request->samples.erase(std::remove_if(request->samples.begin(),
                                        request->samples.end(), releasable),
                         request->samples.end());
  if (!over) return;
  if (request->cancel_step.has_value()) {
    options_.metrics->worker()->ObserveCancelRelease(stats_.steps -
                                                     *request->cancel_step);
  }
  by_handoff_.erase(request->start.handoff);
  requests_.erase(request->output.get());
}

void Engine::Poison(const std::vector<BlockId>& table, int32_t first,
                    int32_t slot) {
  for (size_t i = static_cast<size_t>(first); i < table.size(); ++i) {
    options_.store->PoisonBlock(table[i]);
  }
  options_.store->PoisonSlot(slot);
}

void Engine::CheckDeadlines() {
  const absl::Time now = options_.clock->Now();
  std::vector<Request*> late;
  for (const auto& [output, request] : requests_) {
    if (request->phase != Phase::kQuiescing && request->start.deadline <= now) {
      late.push_back(request.get());
    }
  }
  for (Request* const request : late) {
    EndRequest(request, request::MakeError(
                            absl::StatusCode::kDeadlineExceeded,
                            "the request's deadline passed",
                            {.reason = ErrorReason::kDeadline, .field = ""}));
  }
}

void Engine::CheckReaders() {
  const absl::Time now = options_.clock->Now();
  if (now < next_reader_check_) return;
  next_reader_check_ = now + kReaderCheckInterval;
  for (OpenCall& call : open_) {
    if (call.cut_at.has_value()) {
      if (now - *call.cut_at >= kCutGrace) call.output->Cut();
      continue;
    }
    if (call.output->StalledFor(now) < options_.slow_reader_timeout) continue;
    call.cut_at = now;
    options_.metrics->CountSlowReader();
    const absl::Status status = request::MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("nothing was read for ",
                     absl::FormatDuration(options_.slow_reader_timeout)),
        {.reason = ErrorReason::kSlowReader, .field = ""});
    Cancel(call.output.get(), status);
    call.output->End(status);  // the output of a request that is over, too
    news_.push_back(call.output);
  }
  open_.erase(std::remove_if(
                  open_.begin(), open_.end(),
                  [](const OpenCall& call) { return call.output->closed(); }),
              open_.end());
}

void Engine::EndAll(const absl::Status& status) {
  std::vector<Request*> live;
  for (const auto& [output, request] : requests_) {
    if (request->phase != Phase::kQuiescing) live.push_back(request.get());
  }
  for (Request* const request : live) EndRequest(request, status);
  if (options_.notify && !news_.empty()) options_.notify(&news_);
  news_.clear();
  PublishStats();
}

void Engine::Audit() {
  const absl::Status status = options_.pool->Audit();
  if (!status.ok()) ReportBug("decode_engine.ledger", status.message());
  options_.metrics->worker()->SetOrphaned(options_.pool->orphaned());
}

void Engine::SetGauges() {
  const EngineStats stats = this->stats();
  worker::WorkerMetrics* const metrics = options_.metrics->worker();
  metrics->SetBlocks(stats.blocks);
  metrics->SetSequences(kReservedState, stats.reserved);
  metrics->SetSequences(kRunningState, stats.running);
  metrics->SetSequences(kQuiescingState, stats.quiescing);
  options_.metrics->SetOpenCalls(stats.open_calls);
  const handoff::ReceiverStats received = options_.receiver->stats();
  for (const auto& [component, bytes] : received.bytes) {
    metrics->SetHandoffBytes(component, bytes);
  }
  metrics->SetLinksUp(received.links_up);
}

void Engine::MarkNews(Request* request) {
  if (request->has_news) return;
  request->has_news = true;
  news_.push_back(request->output);
}

void Engine::LogEnd(const Request& request, const absl::Status& status) const {
  const absl::Time now = options_.clock->Now();
  const absl::Time committed_at = request.committed_at.value_or(now);
  const absl::Duration waited = committed_at - request.reserved_at;
  const absl::Duration decoded = now - committed_at;
  LogInfo("decode_finished",
          {{"request", ToHex(request.start.request)},
           {"handoff", ToHex(request.start.handoff)},
           {"attempt", request.attempt},
           {"status", absl::StatusCodeToString(status.code())},
           {"reason", request::ErrorReasonName(request::InfoOf(status).reason)},
           {"prompt_tokens", request.start.prompt_ids.size()},
           {"samples", request.start.sampling.n},
           {"output_tokens", request.output_tokens},
           {"handoff_us", absl::ToInt64Microseconds(waited)},
           {"decode_us", absl::ToInt64Microseconds(decoded)}});
}

void Engine::PublishStats() {
  stats_.running = static_cast<int32_t>(batch_.size());
  stats_.quiescing =
      scheduler_.seats_taken() - stats_.reserved - stats_.running;
  stats_.open_calls = static_cast<int32_t>(open_.size());
  stats_.blocks = options_.pool->counts();
  stats_.free_seats =
      std::min(scheduler_.max_seats() - scheduler_.seats_taken(),
               stats_.blocks.slots_free);
  stats_.draining = draining_;
  MutexLock lock(&stats_mu_);
  published_ = stats_;
}

EngineStats Engine::stats() const {
  MutexLock lock(&stats_mu_);
  return published_;
}

}  // namespace baton::decode_worker
