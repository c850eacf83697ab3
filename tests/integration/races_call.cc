#include "tests/integration/races_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace baton::integration {
namespace {

// `condition` is called with `mu` held.
bool WaitUnder(Mutex* mu, CondVar* changed, absl::Duration timeout,
               const std::function<bool()>& condition) {
  const absl::Time end = Clock::Real()->Now() + timeout;
  while (!condition()) {
    const absl::Duration left = end - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed->WaitFor(mu, left);
  }
  return true;
}

}  // namespace

struct HoldFirst::State {
  Mutex mu;
  CondVar changed;
  bool reached BATON_GUARDED_BY(mu) = false;
  bool released BATON_GUARDED_BY(mu) = false;
};

HoldFirst::HoldFirst(const std::string& point)
    : point_(point), state_(std::make_shared<State>()) {
  FaultRegistry::Global().Arm(point_, [state = state_](absl::string_view) {
    MutexLock lock(&state->mu);
    if (state->reached) return false;
    state->reached = true;
    state->changed.SignalAll();
    while (!state->released) state->changed.Wait(&state->mu);
    return false;
  });
}

HoldFirst::~HoldFirst() {
  Release();
  FaultRegistry::Global().Disarm(point_);
}

bool HoldFirst::WaitUntilReached(absl::Duration timeout) {
  MutexLock lock(&state_->mu);
  State* const state = state_.get();
  return WaitUnder(&state->mu, &state->changed, timeout,
                   [state] { return state->reached; });
}

void HoldFirst::Release() {
  MutexLock lock(&state_->mu);
  state_->released = true;
  state_->changed.SignalAll();
}

void PromptLog::Update(const std::function<void(Seen*)>& change) {
  MutexLock lock(&mu_);
  CHECK(!seen_.finished.has_value()) << "an event after OnFinished";
  change(&seen_);
  changed_.SignalAll();
}

void PromptLog::OnAdmitted(absl::Duration, int64_t) {
  Update([](Seen* seen) { seen->admitted = true; });
}

void PromptLog::OnSealed(int64_t) {
  Update([](Seen* seen) { seen->sealed = true; });
}

void PromptLog::OnVerdict(bool committed) {
  Update([committed](Seen* seen) { seen->committed = committed; });
}

void PromptLog::OnFinished(const absl::Status& status) {
  Update([&status](Seen* seen) { seen->finished = status; });
}

PromptLog::Seen PromptLog::seen() const {
  MutexLock lock(&mu_);
  return seen_;
}

bool PromptLog::WaitFor(const std::function<bool(const Seen&)>& condition,
                        absl::Duration timeout) const {
  MutexLock lock(&mu_);
  return WaitUnder(&mu_, &changed_, timeout, [&] { return condition(seen_); });
}

DirectCall::DirectCall(const Colocated& workers, Options options,
                       Random* random)
    : workers_(workers),
      options_(std::move(options)),
      request_(RequestId::Mint(random)),
      handoff_(HandoffId::Mint(random)),
      prompt_hash_(HashTokenIds(options_.prompt)),
      reader_(std::make_shared<Reader>(options_.sampling.n)) {}

std::shared_ptr<PromptLog> DirectCall::Admit(int32_t index, Attempt attempt) {
  auto log = std::make_shared<PromptLog>();
  CHECK(workers_.prefill(index).Admit({.request = request_,
                                       .handoff = handoff_,
                                       .attempt = attempt,
                                       .prompt_ids = options_.prompt,
                                       .prompt_hash = prompt_hash_,
                                       .model_digest = workers_.model_digest(),
                                       .deadline = absl::InfiniteFuture()},
                                      log));
  return log;
}

void DirectCall::Attach(int32_t index, const std::shared_ptr<PromptLog>& log) {
  handoff::Ticket ticket;
  {
    MutexLock lock(&reader_->mu);
    const decode_worker::Collected& seen = reader_->collected;
    ticket = seen.reticketed.has_value() ? seen.reticketed->ticket
                                         : seen.ticket.value();
  }
  workers_.prefill(index).Attach(log, std::move(ticket));
}

void DirectCall::CancelPrompt(int32_t index,
                              const std::shared_ptr<PromptLog>& log) {
  workers_.prefill(index).Cancel(
      log, absl::CancelledError("the router cancelled the call"));
}

absl::Status DirectCall::Reserve() {
  const std::weak_ptr<Reader> weak = reader_;
  auto output = std::make_shared<decode_worker::RequestOutput>(
      decode_worker::RequestOutputOptions{
          .samples = options_.sampling.n,
          .vocabulary = workers_.decode().vocabulary(),
          .clock = workers_.decode().clock(),
          .on_ready = [weak] {
            const auto reader = weak.lock();
            if (reader == nullptr) return;
            MutexLock lock(&reader->mu);
            reader->collected.Drain(reader->output.get());
            if (reader->collected.end.has_value()) reader->output->Close();
            reader->changed.SignalAll();
          }});
  {
    MutexLock lock(&reader_->mu);
    reader_->output = output;
  }
  RETURN_IF_ERROR(
      workers_.decode().Start({.request = request_,
                               .handoff = handoff_,
                               .prompt_ids = options_.prompt,
                               .prompt_hash = prompt_hash_,
                               .model_digest = workers_.model_digest(),
                               .sampling = options_.sampling,
                               .deadline = options_.deadline},
                              output));
  if (!WaitFor([](const decode_worker::Collected& c) {
        return c.ticket.has_value() || c.end.has_value();
      })) {
    return absl::DeadlineExceededError("neither reserved nor refused");
  }
  MutexLock lock(&reader_->mu);
  return reader_->collected.ticket.has_value() ? absl::OkStatus()
                                               : *reader_->collected.end;
}

absl::Status DirectCall::Reticket(Attempt attempt) {
  PostReticket(attempt);
  return WaitForReticket();
}

void DirectCall::PostReticket(Attempt attempt) {
  std::shared_ptr<decode_worker::RequestOutput> output;
  {
    MutexLock lock(&reader_->mu);
    output = reader_->output;
    reader_->collected.reticketed.reset();
  }
  workers_.decode().Reticket(output, attempt);
}

absl::Status DirectCall::WaitForReticket() {
  if (!WaitFor([](const decode_worker::Collected& c) {
        return c.reticketed.has_value() || c.end.has_value();
      })) {
    return absl::DeadlineExceededError("no answer to Reticket");
  }
  MutexLock lock(&reader_->mu);
  const decode_worker::Collected& seen = reader_->collected;
  if (!seen.reticketed.has_value()) return *seen.end;
  return seen.reticketed->already_committed
             ? absl::FailedPreconditionError("committed")
             : absl::OkStatus();
}

void DirectCall::Cancel() {
  std::shared_ptr<decode_worker::RequestOutput> output;
  {
    MutexLock lock(&reader_->mu);
    output = reader_->output;
  }
  workers_.decode().Cancel(
      output, absl::CancelledError("the router cancelled the call"));
}

absl::StatusOr<std::shared_ptr<PromptLog>> DirectCall::Begin() {
  std::shared_ptr<PromptLog> log = Admit(0, 1);
  RETURN_IF_ERROR(Reserve());
  Attach(0, log);
  return log;
}

absl::Status DirectCall::WaitForEnd(absl::Duration timeout) {
  if (!WaitFor(
          [](const decode_worker::Collected& c) { return c.end.has_value(); },
          timeout)) {
    return absl::DeadlineExceededError("decode did not end the call");
  }
  MutexLock lock(&reader_->mu);
  return *reader_->collected.end;
}

bool DirectCall::WaitFor(
    const std::function<bool(const decode_worker::Collected&)>& condition,
    absl::Duration timeout) {
  Reader* const reader = reader_.get();
  MutexLock lock(&reader->mu);
  return WaitUnder(&reader->mu, &reader->changed, timeout,
                   [&] { return condition(reader->collected); });
}

std::vector<int32_t> DirectCall::ids(int32_t sample) const {
  MutexLock lock(&reader_->mu);
  return reader_->collected.samples.at(static_cast<size_t>(sample)).ids;
}

std::string DirectCall::text(int32_t sample) const {
  MutexLock lock(&reader_->mu);
  return reader_->collected.samples.at(static_cast<size_t>(sample)).text;
}

bool DirectCall::committed() const {
  MutexLock lock(&reader_->mu);
  return reader_->collected.committed.has_value();
}

}  // namespace baton::integration
