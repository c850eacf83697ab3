// Non-blocking TCP sockets with deadlines. Every wait ends by a deadline of the
// injected clock or by a wake-up.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"

namespace baton::transfer {

// Owns a file descriptor.
class Fd final {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept;
  void Reset();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Wakes threads that wait in poll; stays signalled.
class WakeFd final {
 public:
  WakeFd();
  void Signal();
  int get() const { return fd_.get(); }

 private:
  Fd fd_;
};

// When a wait ends: CANCELLED once `wake` is signalled (null: never),
// DEADLINE_EXCEEDED at the deadline.
struct WaitLimit {
  Clock* clock = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  const WakeFd* wake = nullptr;
};

struct HostPort {
  std::string host;
  int port = 0;
};
// "HOST:PORT" with a numeric port; InvalidArgument.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// UNAVAILABLE when the address cannot be bound. Port 0 lets the system choose.
absl::StatusOr<Fd> ListenTcp(const HostPort& address);
absl::StatusOr<int> LocalPort(const Fd& fd);
// An accepted connection, or an invalid Fd when there is none now.
Fd AcceptTcp(const Fd& listener);
// TCP_NODELAY is set. UNAVAILABLE when refused.
absl::StatusOr<Fd> ConnectTcp(const HostPort& address, const WaitLimit& limit);

// UNAVAILABLE when the peer is gone.
absl::Status WriteAll(const Fd& fd, absl::Span<const std::byte> bytes,
                      const WaitLimit& limit);
absl::Status ReadAll(const Fd& fd, absl::Span<std::byte> bytes,
                     const WaitLimit& limit);
// What is there now, at most bytes.size(); 0: nothing yet. UNAVAILABLE at the
// end of the stream.
absl::StatusOr<size_t> ReadSome(const Fd& fd, absl::Span<std::byte> bytes);

}  // namespace baton::transfer
