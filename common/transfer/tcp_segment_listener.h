// Receives the segments of all TCP links of one process on one port.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/thread.h"
#include "common/transfer/segment_header.h"
#include "common/transfer/tcp_socket.h"

namespace baton::transfer {

// Told on the link's data thread.
struct SegmentSink {
  std::function<void(const SegmentHeader&, absl::Span<const std::byte>)>
      on_segment;
  // The connection ended or sent something that is not a segment; nothing
  // follows.
  std::function<void(const absl::Status&)> on_broken;
};

struct TcpListenerOptions {
  std::string bind_host = "127.0.0.1";
  int port = 0;                // 0: the system chooses
  std::string advertise_host;  // in endpoint(); bind_host when empty
  Clock* clock = Clock::Real();
  Random* random = Random::System();
  int64_t max_segment_bytes = int64_t{8} << 20;
  // Connections that have not shown a valid preamble yet, and how long they
  // may take; further ones are closed at once.
  int32_t max_pending = 32;
  absl::Duration preamble_timeout = absl::Seconds(5);
  // From the first byte of a segment to its last.
  absl::Duration segment_timeout = absl::Seconds(30);
};

// Thread-safe. A connection belongs to a link by the epoch and the secret token
// of its preamble; one connection per link. Memory per link: one segment, and
// nothing is allocated from a length that was not checked before.
class TcpSegmentListener final {
 public:
  // UNAVAILABLE when the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<TcpSegmentListener>> Create(
      TcpListenerOptions options);
  // All links are unregistered before.
  ~TcpSegmentListener();

  // "tcp:HOST:PORT"
  const std::string& endpoint() const { return endpoint_; }
  int port() const { return port_; }

  // Expects a connection for this link; returns its token.
  DataToken Register(LinkEpoch epoch, SegmentSink sink);
  // Closes the connection; no call into the sink is running or follows. Not
  // from the sink.
  void Unregister(LinkEpoch epoch);

  int32_t pending_connections() const;

 private:
  struct LinkEntry {
    DataToken token{};
    SegmentSink sink;
    WakeFd wake;
    Fd fd;
    Thread thread;
  };
  struct PendingConnection {
    Fd fd;
    PreambleBytes bytes{};
    size_t received = 0;
    absl::Time deadline;
  };

  explicit TcpSegmentListener(TcpListenerOptions options)
      : options_(std::move(options)) {}
  void RunAccept();
  void AcceptNew();
  // False: done with it, take it off the list.
  bool AdvancePending(PendingConnection* pending);
  void Attach(const DataPreamble& preamble, Fd fd);
  void RunLink(LinkEntry* entry);
  absl::Status ReceiveSegments(LinkEntry* entry);

  const TcpListenerOptions options_;
  std::string endpoint_;
  int port_ = 0;
  Fd listener_;
  WakeFd stop_;
  std::list<PendingConnection> pending_;  // accept thread only
  mutable Mutex mu_;
  int32_t pending_count_ BATON_GUARDED_BY(mu_) = 0;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  std::map<LinkEpoch, std::unique_ptr<LinkEntry>> links_ BATON_GUARDED_BY(mu_);
  Thread accept_thread_;
};

}  // namespace baton::transfer
