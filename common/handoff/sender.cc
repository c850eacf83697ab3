#include "common/handoff/sender.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/status_macros.h"
#include "common/handoff/sender_impl.h"

namespace baton::handoff {

namespace sender_internal {

namespace {

using request::ErrorReason;
using transfer::VerdictKind;

// Attempts remembered after their end: longer than any retry takes.
constexpr size_t kMaxAttempts = 8192;

absl::StatusCode CodeOf(ErrorReason reason) {
  switch (reason) {
    case ErrorReason::kMismatch:
      return absl::StatusCode::kFailedPrecondition;
    case ErrorReason::kHandoffRejected:
      return absl::StatusCode::kDataLoss;
    case ErrorReason::kStale:
      return absl::StatusCode::kAborted;
    case ErrorReason::kCancelled:
      return absl::StatusCode::kCancelled;
    case ErrorReason::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status LostError(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kUnavailable, message,
                            {.reason = ErrorReason::kWorkerLost});
}

SenderImpl::SenderImpl(SenderOptions options)
    : options_(std::move(options)),
      format_hash_(options_.store->format().Hash()) {}

SenderImpl::~SenderImpl() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [key, link] : links_) links.push_back(link);
    links.insert(links.end(), retired_.begin(), retired_.end());
    for (const auto& link : links) Wake(link);
  }
  for (const auto& link : links) link->thread.Join();
  // Jobs and links hold each other.
  MutexLock lock(&mu_);
  for (const auto& [id, job] : jobs_) job->link = nullptr;
  for (const auto& link : links) link->jobs.clear();
}

absl::StatusOr<std::shared_ptr<Link>> SenderImpl::LinkFor(
    const Ticket& ticket) {
  const LinkKey key(ticket.endpoints.front(), ticket.receiver_incarnation);
  const auto it = links_.find(key);
  if (it != links_.end()) return it->second;
  const auto idle = [this](const auto& entry)
                        BATON_NO_TSA { return entry.second->jobs.empty(); };
  if (links_.size() >= static_cast<size_t>(options_.max_links)) {
    const auto victim = std::find_if(links_.begin(), links_.end(), idle);
    if (victim == links_.end()) {
      return request::MakeError(
          absl::StatusCode::kResourceExhausted,
          absl::StrCat("all ", options_.max_links, " links are in use"),
          {.reason = ErrorReason::kOverloaded});
    }
    victim->second->retire = true;
    Wake(victim->second);
    retired_.push_back(std::move(victim->second));
    links_.erase(victim);
  }
  auto link = std::make_shared<Link>();
  link->endpoint = key.first;
  link->receiver_incarnation = key.second;
  link->idle_since = options_.clock->Now();
  link->redial_at = link->idle_since;
  links_[key] = link;
  link->thread = Thread("handoff-link", [this, link] { RunLink(link); });
  return link;
}

absl::Status SenderImpl::Start(const SendRequest& request) {
  Reap();
  const Ticket& ticket = request.ticket;
  if (ticket.endpoints.empty() || ticket.handoff != request.handoff ||
      request.prompt_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ticket of hand-off ", ToHex(ticket.handoff), " with ",
        ticket.endpoints.size(), " endpoints for hand-off ",
        ToHex(request.handoff), " of ", request.prompt_tokens, " tokens"));
  }
  if (ticket.attempt != request.attempt) {
    return request::MakeError(absl::StatusCode::kAborted,
                              absl::StrCat("ticket of attempt ", ticket.attempt,
                                           ", expected ", request.attempt),
                              {.reason = ErrorReason::kStale});
  }
  if (ticket.state_format_hash != format_hash_) {
    return request::MakeError(absl::StatusCode::kFailedPrecondition,
                              "ticket of a receiver with another StateFormat",
                              {.reason = ErrorReason::kMismatch});
  }
  auto job = std::make_shared<Job>(request, options_.store->format());
  if (BATON_FAULT("handoff.stale_attempt", "")) --job->wire_attempt;
  job->checksums.resize(job->plan.regions().size());
  job->sent_rows.resize(job->plan.regions().size());
  MutexLock lock(&mu_);
  if (jobs_.contains(request.handoff)) {
    return absl::AlreadyExistsError(
        absl::StrCat("hand-off ", ToHex(request.handoff), " is being sent"));
  }
  const auto known = attempts_.find(request.handoff);
  if (known != attempts_.end() && request.attempt <= known->second) {
    return request::MakeError(
        absl::StatusCode::kAborted,
        absl::StrCat("attempt ", request.attempt, " of hand-off ",
                     ToHex(request.handoff), " is not newer than ",
                     known->second),
        {.reason = ErrorReason::kStale});
  }
  ASSIGN_OR_RETURN(job->link, LinkFor(ticket));
  if (known == attempts_.end()) attempts_order_.push_back(request.handoff);
  attempts_[request.handoff] = request.attempt;
  if (attempts_order_.size() > kMaxAttempts) {
    attempts_.erase(attempts_order_.front());
    attempts_order_.pop_front();
  }
  jobs_[request.handoff] = job;
  job->link->jobs.push_back(job);
  Wake(job->link);
  return absl::OkStatus();
}

void SenderImpl::RowsComplete(HandoffId handoff, int64_t processed) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(handoff);
  if (it == jobs_.end() || it->second->finished || it->second->sealed) return;
  Job* const job = it->second.get();
  job->processed_tokens = std::max(
      job->processed_tokens, std::min(processed, job->request.prompt_tokens));
  job->plan.AddGrowing(job->processed_tokens);
  Wake(job->link);
}

void SenderImpl::Seal(HandoffId handoff, SealRequest seal) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(handoff);
  if (it == jobs_.end() || it->second->finished || it->second->sealed) return;
  Job* const job = it->second.get();
  job->processed_tokens = job->request.prompt_tokens;
  job->plan.AddRest(job->processed_tokens);
  job->seal = std::move(seal);
  job->sealed = true;
  Wake(job->link);
}

void SenderImpl::Cancel(HandoffId handoff, absl::string_view reason) {
  {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(handoff);
    if (it == jobs_.end() || it->second->finished) return;
    const std::shared_ptr<Job> job = it->second;
    job->link->aborts.push_back(
        {handoff, job->wire_attempt, std::string(reason)});
    Finish(job, std::nullopt);
  }
  NotifyIfEvents();
}

std::vector<SenderEvent> SenderImpl::TakeEvents() {
  Reap();
  MutexLock lock(&mu_);
  std::vector<SenderEvent> events;
  events.swap(events_);
  return events;
}

SenderStats SenderImpl::stats() const {
  MutexLock lock(&mu_);
  SenderStats stats;
  stats.bytes.assign(bytes_.begin(), bytes_.end());
  stats.segments = segments_;
  for (const auto& [key, link] : links_) stats.links_up += link->up ? 1 : 0;
  return stats;
}

void SenderImpl::OnPosted(const std::shared_ptr<Link>& link,
                          const transfer::Posted& posted) {
  MutexLock lock(&mu_);
  for (OpenSegment& segment : link->open) {
    if (segment.header.segment_seq == posted.segment_seq) {
      segment.posted = true;
    }
  }
  link->last_progress = options_.clock->Now();
  Wake(link);
}

void SenderImpl::OnDone(const std::shared_ptr<Link>& link,
                        const transfer::Done& done) {
  MutexLock lock(&mu_);
  if (link->open.empty() || !link->open.front().sent ||
      link->open.front().header.segment_seq != done.segment_seq) {
    link->lost = LostError(
        absl::StrCat("Done of segment ", done.segment_seq, " out of order"));
    Wake(link);
    return;
  }
  OpenSegment& segment = link->open.front();
  if (done.kept) {
    for (const auto& [component, bytes] : segment.bytes) {
      bytes_[component] += bytes;
    }
  }
  --segment.job->open_segments;
  link->open.pop_front();
  link->last_progress = options_.clock->Now();
  Wake(link);
}

void SenderImpl::OnVerdict(const transfer::Verdict& verdict) {
  {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(verdict.handoff);
    if (it == jobs_.end() || it->second->finished ||
        it->second->wire_attempt != verdict.attempt) {
      return;
    }
    const std::shared_ptr<Job> job = it->second;
    switch (verdict.kind) {
      case VerdictKind::kCommitted:
        Finish(job, absl::OkStatus());
        break;
      case VerdictKind::kRejected:
        Finish(job, request::MakeError(
                        CodeOf(verdict.reason),
                        absl::StrCat("receiver rejected: ", verdict.message),
                        {.reason = verdict.reason}));
        break;
      case VerdictKind::kUnknown:
        Finish(job, LostError(absl::StrCat("receiver does not know it: ",
                                           verdict.message)));
        break;
    }
  }
  NotifyIfEvents();
}

void SenderImpl::OnLinkClosed(const std::shared_ptr<Link>& link,
                              const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!link->lost.has_value()) link->lost = status;
  Wake(link);
}

void SenderImpl::Wake(const std::shared_ptr<Link>& link) {
  link->signalled = true;
  link->changed.Signal();
}

void SenderImpl::Finish(const std::shared_ptr<Job>& job,
                        const std::optional<absl::Status>& status) {
  CHECK(!job->finished);
  job->finished = true;
  if (status.has_value()) {
    events_.push_back({.kind = status->ok() ? SenderEventKind::kCommitted
                                            : SenderEventKind::kFailed,
                       .handoff = job->request.handoff,
                       .attempt = job->request.attempt,
                       .status = *status});
    notify_ = true;
  }
  std::erase(job->link->jobs, job);
  if (job->link->jobs.empty()) job->link->idle_since = options_.clock->Now();
  Wake(job->link);
  if (!job->gathering) Quiet(job);
}

void SenderImpl::Quiet(const std::shared_ptr<Job>& job) {
  events_.push_back({.kind = SenderEventKind::kQuiet,
                     .handoff = job->request.handoff,
                     .attempt = job->request.attempt});
  notify_ = true;
  job->link = nullptr;
  jobs_.erase(job->request.handoff);
}

void SenderImpl::NotifyIfEvents() {
  {
    MutexLock lock(&mu_);
    if (!notify_) return;
    notify_ = false;
  }
  if (options_.on_event) options_.on_event();
}

void SenderImpl::Reap() {
  std::vector<std::shared_ptr<Link>> done;
  {
    MutexLock lock(&mu_);
    if (retired_.empty()) return;
    // A retired link's thread may still be closing its link: only those that
    // are through are joined here.
    const auto ended = std::partition(
        retired_.begin(), retired_.end(),
        [](const std::shared_ptr<Link>& link) { return !link->ended; });
    done.assign(ended, retired_.end());
    retired_.erase(ended, retired_.end());
  }
  for (const auto& link : done) link->thread.Join();
}

}  // namespace sender_internal

absl::StatusOr<std::unique_ptr<Sender>> CreateSender(SenderOptions options) {
  if (options.store == nullptr || options.dialer == nullptr ||
      options.clock == nullptr) {
    return absl::InvalidArgumentError(
        "a sender needs a store, a dialer and a clock");
  }
  int64_t row_bytes = 0;
  for (const kv::Region& region : kv::Regions(options.store->format())) {
    row_bytes = std::max(
        row_bytes, kv::RowBytes(options.store->format(), region.component));
  }
  if (options.identity.incarnation == 0 || options.identity.worker.empty() ||
      options.max_segment_bytes < row_bytes ||
      options.max_outstanding_segments < 1 || options.max_links < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sender options: worker '", options.identity.worker, "', incarnation ",
        options.identity.incarnation, ", max_segment_bytes ",
        options.max_segment_bytes, " (a row has ", row_bytes,
        "), max_outstanding_segments ", options.max_outstanding_segments,
        ", max_links ", options.max_links));
  }
  return std::make_unique<sender_internal::SenderImpl>(std::move(options));
}

}  // namespace baton::handoff
