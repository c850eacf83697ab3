#include "common/transfer/tcp_segment_listener.h"

#include <poll.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::transfer {

namespace {

constexpr int kPollMs = 100;  // how often deadlines of pending ones are checked

// Takes as long whatever differs.
bool SameToken(const DataToken& a, const DataToken& b) {
  uint8_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different = static_cast<uint8_t>(different | (a[i] ^ b[i]));
  }
  return different == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpSegmentListener>> TcpSegmentListener::Create(
    TcpListenerOptions options) {
  auto self = std::unique_ptr<TcpSegmentListener>(
      new TcpSegmentListener(std::move(options)));
  ASSIGN_OR_RETURN(self->listener_,
                   ListenTcp({self->options_.bind_host, self->options_.port}));
  ASSIGN_OR_RETURN(self->port_, LocalPort(self->listener_));
  self->endpoint_ = absl::StrCat("tcp:",
                                 self->options_.advertise_host.empty()
                                     ? self->options_.bind_host
                                     : self->options_.advertise_host,
                                 ":", self->port_);
  TcpSegmentListener* const raw = self.get();
  self->accept_thread_ = Thread("link-accept", [raw] { raw->RunAccept(); });
  return self;
}

TcpSegmentListener::~TcpSegmentListener() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    CHECK(links_.empty()) << links_.size() << " links are still registered";
  }
  stop_.Signal();
}

DataToken TcpSegmentListener::Register(LinkEpoch epoch, SegmentSink sink) {
  auto entry = std::make_unique<LinkEntry>();
  for (size_t i = 0; i < entry->token.size(); i += 8) {
    const uint64_t bits = options_.random->Uint64();
    for (size_t j = 0; j < 8; ++j) {
      entry->token[i + j] = static_cast<uint8_t>(bits >> (8 * j));
    }
  }
  entry->sink = std::move(sink);
  const DataToken token = entry->token;
  MutexLock lock(&mu_);
  const bool inserted = links_.emplace(epoch, std::move(entry)).second;
  CHECK(inserted) << "link epoch " << epoch << " is registered twice";
  return token;
}

void TcpSegmentListener::Unregister(LinkEpoch epoch) {
  std::unique_ptr<LinkEntry> entry;
  {
    MutexLock lock(&mu_);
    const auto it = links_.find(epoch);
    if (it == links_.end()) return;
    entry = std::move(it->second);
    links_.erase(it);
  }
  entry->wake.Signal();
  entry->thread.Join();
}

int32_t TcpSegmentListener::pending_connections() const {
  MutexLock lock(&mu_);
  return pending_count_;
}

void TcpSegmentListener::RunAccept() {
  while (true) {
    std::vector<pollfd> fds = {
        {.fd = stop_.get(), .events = POLLIN, .revents = 0},
        {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const PendingConnection& pending : pending_) {
      fds.push_back({.fd = pending.fd.get(), .events = POLLIN, .revents = 0});
    }
    poll(fds.data(), fds.size(), kPollMs);
    if (fds[0].revents != 0) return;
    pending_.remove_if([this](PendingConnection& pending) {
      return !AdvancePending(&pending);
    });
    if (fds[1].revents != 0) AcceptNew();
    MutexLock lock(&mu_);
    pending_count_ = static_cast<int32_t>(pending_.size());
  }
}

void TcpSegmentListener::AcceptNew() {
  while (true) {
    Fd fd = AcceptTcp(listener_);
    if (!fd.valid()) return;
    if (pending_.size() >= static_cast<size_t>(options_.max_pending)) {
      LogWarning("data_connection_refused",
                 {{"reason", "too many without a preamble"}});
      continue;
    }
    PendingConnection pending;
    pending.fd = std::move(fd);
    pending.deadline = options_.clock->Now() + options_.preamble_timeout;
    pending_.push_back(std::move(pending));
  }
}

bool TcpSegmentListener::AdvancePending(PendingConnection* pending) {
  const auto read = ReadSome(
      pending->fd, absl::MakeSpan(pending->bytes).subspan(pending->received));
  if (!read.ok()) return false;
  pending->received += *read;
  if (pending->received < pending->bytes.size()) {
    return options_.clock->Now() < pending->deadline;
  }
  const auto preamble = DecodePreamble(pending->bytes);
  if (!preamble.ok()) {
    LogWarning("data_connection_refused",
               {{"reason", preamble.status().message()}});
    return false;
  }
  Attach(*preamble, std::move(pending->fd));
  return false;
}

void TcpSegmentListener::Attach(const DataPreamble& preamble, Fd fd) {
  MutexLock lock(&mu_);
  const auto it = links_.find(preamble.link_epoch);
  if (it == links_.end() || it->second->fd.valid() ||
      !SameToken(it->second->token, preamble.token)) {
    LogWarning("data_connection_refused",
               {{"reason", "no such link, or it has its connection"},
                {"link_epoch", preamble.link_epoch}});
    return;
  }
  LinkEntry* const entry = it->second.get();
  entry->fd = std::move(fd);
  entry->thread = Thread("link-data", [this, entry] { RunLink(entry); });
}

void TcpSegmentListener::RunLink(LinkEntry* entry) {
  const absl::Status status = ReceiveSegments(entry);
  // Cancelled: Unregister, whose caller knows.
  if (!absl::IsCancelled(status)) entry->sink.on_broken(status);
}

absl::Status TcpSegmentListener::ReceiveSegments(LinkEntry* entry) {
  std::vector<std::byte> payload;
  while (true) {
    SegmentHeaderBytes bytes;
    // A link may be idle for long: only the rest of a header is timed.
    const absl::Span<std::byte> head = absl::MakeSpan(bytes);
    RETURN_IF_ERROR(ReadAll(entry->fd, head.first(1),
                            {.clock = options_.clock, .wake = &entry->wake}));
    const WaitLimit limit{
        .clock = options_.clock,
        .deadline = options_.clock->Now() + options_.segment_timeout,
        .wake = &entry->wake};
    RETURN_IF_ERROR(ReadAll(entry->fd, head.subspan(1), limit));
    ASSIGN_OR_RETURN(const SegmentHeader header,
                     DecodeSegmentHeader(bytes, options_.max_segment_bytes));
    payload.resize(static_cast<size_t>(header.payload_bytes));
    RETURN_IF_ERROR(ReadAll(entry->fd, absl::MakeSpan(payload), limit));
    if (BATON_FAULT("transfer.receiver_drop_link", "")) {
      return absl::UnavailableError("dropped by transfer.receiver_drop_link");
    }
    if (BATON_FAULT("transfer.receiver_corrupt_segment", "")) {
      payload[payload.size() / 2] ^= std::byte{0x10};
    }
    entry->sink.on_segment(header, payload);
  }
}

}  // namespace baton::transfer
