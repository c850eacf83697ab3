// The thread of one link of the sender.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/handoff/checksum.h"
#include "common/handoff/sender_impl.h"

namespace baton::handoff::sender_internal {

namespace {

using request::ErrorReason;
using transfer::Piece;

// How often a link with work looks at the clock, in real time: deadlines are
// kept to within this.
constexpr absl::Duration kBusyPoll = absl::Milliseconds(10);
constexpr absl::Duration kIdlePoll = absl::Milliseconds(250);
// Every so often the oldest job goes first, so that short prompts, which
// otherwise do, cannot starve a long one.
constexpr int32_t kOldestFirstEvery = 4;

class Handler final : public transfer::LinkSenderHandler {
 public:
  Handler(SenderImpl* sender, std::shared_ptr<Link> link)
      : sender_(sender), link_(std::move(link)) {}
  void OnPosted(const transfer::Posted& m) override {
    sender_->OnPosted(link_, m);
  }
  void OnDone(const transfer::Done& m) override { sender_->OnDone(link_, m); }
  void OnVerdict(const transfer::Verdict& m) override { sender_->OnVerdict(m); }
  void OnLinkClosed(const absl::Status& status) override {
    sender_->OnLinkClosed(link_, status);
  }

 private:
  SenderImpl* const sender_;
  const std::shared_ptr<Link> link_;
};

// Wrong bytes of a correct length, when the faults are armed.
void Mutate(const std::vector<Piece>& pieces, const kv::StateFormat& format,
            std::vector<std::byte>* payload) {
  size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto row =
        static_cast<size_t>(kv::RowBytes(format, piece.region.component));
    if (BATON_FAULT("handoff.flip_byte", kv::ToString(piece.region))) {
      (*payload)[at + row / 2] ^= std::byte{1};
    }
    if (piece.rows.count > 1 &&
        BATON_FAULT("handoff.swap_rows", kv::ToString(piece.region))) {
      const auto first = payload->begin() + static_cast<std::ptrdiff_t>(at);
      const auto length = static_cast<std::ptrdiff_t>(row);
      std::swap_ranges(first, first + length, first + length);
    }
    at += row * static_cast<size_t>(piece.rows.count);
  }
}

}  // namespace

void SenderImpl::RunLink(const std::shared_ptr<Link>& link) {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (stopping_ || link->retire) break;
    }
    const bool worked = Step(link);
    NotifyIfEvents();
    if (worked) continue;
    MutexLock lock(&mu_);
    if (!link->signalled && !stopping_ && !link->retire) {
      link->changed.WaitFor(&mu_, link->jobs.empty() && link->open.empty()
                                      ? kIdlePoll
                                      : kBusyPoll);
    }
    link->signalled = false;
  }
  link->link.reset();
  MutexLock lock(&mu_);
  link->up = false;
  for (OpenSegment& segment : link->open) --segment.job->open_segments;
  link->open.clear();
  link->ended = true;
}

bool SenderImpl::Step(const std::shared_ptr<Link>& link) {
  bool lost = false;
  bool up = false;
  bool dial = false;
  {
    MutexLock lock(&mu_);
    const absl::Time now = options_.clock->Now();
    CheckTimes(link.get());
    lost = link->lost.has_value();
    up = link->up;
    if (!up) link->aborts.clear();  // the receiver saw the link go
    dial = !link->jobs.empty() && now >= link->redial_at;
    if (!lost && link->jobs.empty() && link->open.empty() &&
        link->aborts.empty() &&
        now - link->idle_since >= options_.idle_timeout) {
      link->retire = true;
      const auto it = links_.find({link->endpoint, link->receiver_incarnation});
      if (it != links_.end() && it->second == link) {
        retired_.push_back(link);
        links_.erase(it);
      }
      return true;
    }
  }
  if (lost) {
    GiveUpLink(link);
    return true;
  }
  if (!up) return dial && Dial(link);
  return SendPosted(link) || SendControl(link) || SendSeal(link) ||
         OfferNext(link);
}

void SenderImpl::CheckTimes(Link* link) {
  const absl::Time now = options_.clock->Now();
  for (const auto& job : std::vector(link->jobs)) {
    if (now >= job->request.deadline) {
      // Only this hand-off: one request never ends a link.
      link->aborts.push_back(
          {job->request.handoff, job->wire_attempt, "deadline"});
      Finish(job, request::MakeError(absl::StatusCode::kDeadlineExceeded,
                                     "the request's deadline passed",
                                     {.reason = ErrorReason::kDeadline}));
    } else if (job->seal_sent && now >= job->verdict_deadline) {
      if (job->queried) {
        Finish(job, LostError(absl::StrCat(
                        "no verdict within ",
                        absl::FormatDuration(2 * options_.verdict_timeout))));
      } else {
        job->queried = true;
        job->query_due = true;
        job->verdict_deadline = now + options_.verdict_timeout;
      }
    }
  }
  if (link->up && !link->lost.has_value() && !link->open.empty() &&
      now - link->last_progress >= options_.stall_timeout) {
    link->lost = absl::DeadlineExceededError(absl::StrCat(
        "link stalled: segment ", link->open.front().header.segment_seq,
        link->open.front().sent ? " without Done" : " without Posted", " for ",
        absl::FormatDuration(options_.stall_timeout)));
  }
}

void SenderImpl::GiveUpLink(const std::shared_ptr<Link>& link) {
  link->link.reset();
  MutexLock lock(&mu_);
  const absl::Status why = *link->lost;
  link->lost.reset();
  link->up = false;
  link->next_seq = 1;
  for (OpenSegment& segment : link->open) {
    --segment.job->open_segments;
  }
  link->open.clear();
  link->aborts.clear();
  const bool refused = absl::IsAborted(why) || absl::IsFailedPrecondition(why);
  const absl::Time now = options_.clock->Now();
  link->redial_at = now + options_.redial_interval;
  for (const auto& job : std::vector(link->jobs)) {
    if (job->seal_sent && !refused) {
      // It may have been committed: ask on the next link.
      if (!job->queried) job->verdict_deadline = now + options_.verdict_timeout;
      job->queried = true;
      job->query_due = true;
    } else if (refused) {
      Finish(job, why);
    } else {
      Finish(job, LostError(absl::StrCat("link to ", link->endpoint,
                                         " lost: ", why.message())));
    }
  }
  // New hand-offs may try at once; only questions wait for redial_at.
  if (link->jobs.empty()) link->redial_at = now;
}

bool SenderImpl::Dial(const std::shared_ptr<Link>& link) {
  transfer::LinkHello hello{.sender = options_.identity,
                            .receiver_incarnation = link->receiver_incarnation};
  if (BATON_FAULT("handoff.stale_incarnation", "")) {
    ++hello.receiver_incarnation;
  }
  auto dialed = options_.dialer->Dial(
      link->endpoint, hello, std::make_shared<Handler>(this, link),
      options_.clock->Now() + options_.dial_timeout);
  const absl::Status status = dialed.status();
  if (dialed.ok()) link->link = *std::move(dialed);
  MutexLock lock(&mu_);
  if (status.ok()) {
    link->up = true;
    link->last_progress = options_.clock->Now();
  } else {
    link->lost = status;
  }
  return true;
}

void SenderImpl::NoteSend(const std::shared_ptr<Link>& link,
                          const absl::Status& status) {
  if (status.ok()) return;
  MutexLock lock(&mu_);
  if (!link->lost.has_value()) link->lost = status;
}

bool SenderImpl::SendControl(const std::shared_ptr<Link>& link) {
  std::deque<transfer::LinkAbort> aborts;
  std::vector<transfer::Query> queries;
  std::vector<transfer::LinkProgress> progress;
  {
    MutexLock lock(&mu_);
    aborts.swap(link->aborts);
    for (const auto& job : link->jobs) {
      if (job->query_due) {
        job->query_due = false;
        queries.push_back({job->request.handoff, job->wire_attempt});
      }
      if (!job->sealed && job->processed_tokens > job->told_tokens) {
        job->told_tokens = job->processed_tokens;
        progress.push_back(
            {job->request.handoff, job->wire_attempt, job->processed_tokens});
      }
    }
  }
  for (const auto& m : aborts) NoteSend(link, link->link->Send(m));
  for (const auto& m : queries) NoteSend(link, link->link->Send(m));
  for (const auto& m : progress) NoteSend(link, link->link->Send(m));
  return !aborts.empty() || !queries.empty() || !progress.empty();
}

bool SenderImpl::SendPosted(const std::shared_ptr<Link>& link) {
  transfer::SegmentHeader header;
  std::vector<std::byte> payload;
  {
    MutexLock lock(&mu_);
    // Strictly in the link's sequence: an earlier one that is not posted yet
    // holds the later ones back.
    const auto next =
        std::find_if(link->open.begin(), link->open.end(),
                     [](const OpenSegment& open) { return !open.sent; });
    if (next == link->open.end() || !next->posted) return false;
    next->sent = true;
    header = next->header;
    payload = std::move(next->payload);
    ++segments_;
  }
  BATON_FAULT_POINT("handoff.before_send");
  NoteSend(link, link->link->SendSegment(
                     header, payload,
                     options_.clock->Now() + options_.stall_timeout));
  MutexLock lock(&mu_);
  link->free_staging.push_back(std::move(payload));
  return true;
}

std::shared_ptr<Job> SenderImpl::PickJob(Link* link) {
  std::shared_ptr<Job> oldest;
  std::shared_ptr<Job> shortest;
  // What is left of a sealed prompt is known; others go after it.
  const auto left = [](const Job& job) {
    return job.sealed ? job.plan.bytes() : std::numeric_limits<int64_t>::max();
  };
  for (const auto& job : link->jobs) {
    if (job->plan.empty()) continue;
    if (oldest == nullptr) oldest = job;
    if (shortest == nullptr || left(*job) < left(*shortest)) shortest = job;
  }
  if (oldest == nullptr) return nullptr;
  return ++link->picks % kOldestFirstEvery == 0 ? oldest : shortest;
}

bool SenderImpl::OfferNext(const std::shared_ptr<Link>& link) {
  std::shared_ptr<Job> job;
  std::vector<Piece> pieces;
  std::vector<std::byte> payload;
  {
    MutexLock lock(&mu_);
    if (link->open.size() >=
        static_cast<size_t>(options_.max_outstanding_segments)) {
      return false;
    }
    job = PickJob(link.get());
    if (job == nullptr) return false;
    pieces = job->plan.Take(options_.max_segment_bytes);
    job->gathering = true;
    if (!link->free_staging.empty()) {
      payload = std::move(link->free_staging.back());
      link->free_staging.pop_back();
    }
  }
  BATON_FAULT_POINT("handoff.before_gather");
  for (const Piece& piece : std::vector(pieces)) {
    if (BATON_FAULT("handoff.duplicate_rows", kv::ToString(piece.region))) {
      pieces.push_back(piece);
    }
  }
  const kv::StateFormat& format = options_.store->format();
  int64_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.rows.count * kv::RowBytes(format, piece.region.component);
  }
  payload.resize(static_cast<size_t>(bytes));
  OpenSegment segment;
  std::vector<uint64_t> checksums;
  std::byte* data = payload.data();
  for (const Piece& piece : pieces) {
    const int64_t row_bytes = kv::RowBytes(format, piece.region.component);
    options_.store->GatherRows(piece.region, job->request.sequence,
                               {piece.rows}, data);
    checksums.push_back(RowsChecksum(piece.rows, data, row_bytes));
    segment.bytes.emplace_back(piece.region.component,
                               piece.rows.count * row_bytes);
    data += piece.rows.count * row_bytes;
  }
  Mutate(pieces, format, &payload);
  transfer::Offer offer{.handoff = job->request.handoff,
                        .attempt = job->wire_attempt,
                        .payload_bytes = bytes,
                        .pieces = pieces};
  segment.header = {.handoff = offer.handoff,
                    .attempt = offer.attempt,
                    .payload_bytes = bytes,
                    .checksum = PayloadChecksum(payload)};
  segment.payload = std::move(payload);
  segment.job = job;
  segment.header.link_epoch = link->link->epoch();
  {
    MutexLock lock(&mu_);
    job->gathering = false;
    if (job->finished) {
      // Cancelled meanwhile, and not offered yet: nothing to drop.
      Quiet(job);
      link->free_staging.push_back(std::move(segment.payload));
      return true;
    }
    const std::vector<kv::Region>& regions = job->plan.regions();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto at = static_cast<size_t>(
          std::lower_bound(regions.begin(), regions.end(), pieces[i].region) -
          regions.begin());
      job->checksums[at] += checksums[i];
      job->sent_rows[at] += pieces[i].rows.count;
    }
    offer.segment_seq = link->next_seq++;
    segment.header.segment_seq = offer.segment_seq;
    if (link->open.empty()) link->last_progress = options_.clock->Now();
    ++job->open_segments;
    link->open.push_back(std::move(segment));
  }
  NoteSend(link, link->link->Send(offer));
  return true;
}

bool SenderImpl::SendSeal(const std::shared_ptr<Link>& link) {
  std::shared_ptr<Job> job;
  {
    MutexLock lock(&mu_);
    for (const auto& candidate : link->jobs) {
      if (candidate->sealed && !candidate->seal_sent &&
          candidate->plan.empty() && candidate->open_segments == 0) {
        job = candidate;
        break;
      }
    }
    if (job == nullptr) return false;
    job->seal_sent = true;
    job->verdict_deadline = options_.clock->Now() + options_.verdict_timeout;
    job->gathering = true;  // MakeSeal may read rows
  }
  BATON_FAULT_POINT("handoff.before_seal");
  const transfer::Seal seal = MakeSeal(*job);
  {
    MutexLock lock(&mu_);
    job->gathering = false;
    if (job->finished) {
      Quiet(job);
      return true;
    }
  }
  NoteSend(link, link->link->Send(seal));
  return true;
}

transfer::Seal SenderImpl::MakeSeal(const Job& job) const {
  transfer::Seal seal{.handoff = job.request.handoff,
                      .attempt = job.wire_attempt,
                      .last_logits = job.seal.last_logits,
                      .prefill_us = job.seal.prefill_us};
  transfer::Manifest& manifest = seal.manifest;
  manifest.processed_tokens = job.request.prompt_tokens;
  manifest.prompt_hash = job.seal.prompt_hash;
  manifest.state_format_hash = format_hash_;
  const std::vector<kv::Region>& regions = job.plan.regions();
  for (size_t i = 0; i < regions.size(); ++i) {
    transfer::ManifestRegion region{.region = regions[i],
                                    .rows = job.sent_rows[i],
                                    .checksum = job.checksums[i]};
    if (BATON_FAULT("handoff.claim_unsent_rows", kv::ToString(regions[i]))) {
      // A manifest that is right although the rows were not sent.
      const auto rows =
          kv::CompleteRows(options_.store->format(), regions[i].component,
                           job.request.prompt_tokens);
      region.rows = kv::CountRows(rows);
      region.checksum =
          options_.store->ChecksumRows(regions[i], job.request.sequence, rows);
    }
    manifest.regions.push_back(region);
  }
  if (BATON_FAULT("handoff.wrong_prompt_hash", "")) {
    manifest.prompt_hash[0] ^= 1;
  }
  if (BATON_FAULT("handoff.wrong_token_count", "")) {
    manifest.processed_tokens -= 1;
  }
  if (BATON_FAULT("handoff.wrong_state_format", "")) {
    manifest.state_format_hash[0] ^= 1;
  }
  if (BATON_FAULT("handoff.short_logits", "")) seal.last_logits.pop_back();
  if (BATON_FAULT("handoff.nan_logits", "")) {
    seal.last_logits.front() = std::numeric_limits<float>::quiet_NaN();
  }
  seal.logits_checksum = LogitsChecksum(seal.last_logits);
  if (BATON_FAULT("handoff.wrong_logits", "")) seal.last_logits.front() += 1;
  return seal;
}

}  // namespace baton::handoff::sender_internal
