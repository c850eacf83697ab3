#include "common/transfer/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::transfer {

namespace {

// How often a wait looks at the injected clock, in real milliseconds.
constexpr int kPollMs = 20;

absl::Status ErrnoError(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

// OK when `fd` is ready for `events`.
absl::Status WaitFor(int fd, short events, const WaitLimit& limit) {
  while (true) {
    pollfd fds[2] = {{.fd = fd, .events = events, .revents = 0},
                     {.fd = limit.wake == nullptr ? -1 : limit.wake->get(),
                      .events = POLLIN,
                      .revents = 0}};
    const int ready = poll(fds, 2, kPollMs);
    if (ready < 0 && errno != EINTR) return ErrnoError("poll", errno);
    if (fds[1].revents != 0) return absl::CancelledError("socket wait ended");
    if (ready > 0 && fds[0].revents != 0) return absl::OkStatus();
    if (limit.clock->Now() >= limit.deadline) {
      return absl::DeadlineExceededError(events == POLLIN
                                             ? "no data from the peer in time"
                                             : "the peer took no data in time");
    }
  }
}

void SetOptions(int fd) {
  const int one = 1;
  // Headers and segments are whole messages: nothing to wait for.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostPort& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(
      address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve '", address.host,
                                               "': ", gai_strerror(error)));
  }
  return AddressList(list, &freeaddrinfo);
}

int NewSocket(const addrinfo& info) {
  return socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                info.ai_protocol);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

void Fd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CHECK(fd_.valid()) << "eventfd: " << strerror(errno);
}

void WakeFd::Signal() {
  const uint64_t one = 1;
  // Fails only when the counter is full: signalled then as well.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof(one));
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &out.port) || out.port < 0 ||
      out.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "', expected HOST:PORT"));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  out.host = std::string(host);
  return out;
}

absl::StatusOr<Fd> ListenTcp(const HostPort& address) {
  ASSIGN_OR_RETURN(const AddressList list, Resolve(address, /*passive=*/true));
  int error = 0;
  for (const addrinfo* info = list.get(); info != nullptr;
       info = info->ai_next) {
    Fd fd(NewSocket(*info));
    const int one = 1;
    if (fd.valid() &&
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ==
            0 &&
        bind(fd.get(), info->ai_addr, info->ai_addrlen) == 0 &&
        listen(fd.get(), /*backlog=*/64) == 0) {
      return fd;
    }
    error = errno;
  }
  return ErrnoError(
      absl::StrCat("cannot listen on ", address.host, ":", address.port),
      error);
}

absl::StatusOr<int> LocalPort(const Fd& fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(fd.get(), address, &length) != 0) {
    return ErrnoError("getsockname", errno);
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

Fd AcceptTcp(const Fd& listener) {
  Fd fd(
      accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) SetOptions(fd.get());
  return fd;
}

absl::StatusOr<Fd> ConnectTcp(const HostPort& address, const WaitLimit& limit) {
  ASSIGN_OR_RETURN(const AddressList list, Resolve(address, /*passive=*/false));
  absl::Status status = absl::UnavailableError("no address");
  for (const addrinfo* info = list.get(); info != nullptr;
       info = info->ai_next) {
    Fd fd(NewSocket(*info));
    if (!fd.valid()) {
      status = ErrnoError("socket", errno);
      continue;
    }
    int error = 0;
    if (connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        status = WaitFor(fd.get(), POLLOUT, limit);
        if (!status.ok()) continue;
        socklen_t length = sizeof(error);
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
    if (error == 0) {
      SetOptions(fd.get());
      return fd;
    }
    status = ErrnoError("connect", error);
  }
  return Annotate(status, absl::StrCat(address.host, ":", address.port));
}

absl::Status WriteAll(const Fd& fd, absl::Span<const std::byte> bytes,
                      const WaitLimit& limit) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK &&
               errno != EINTR) {
      return ErrnoError("send", errno);
    } else {
      RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, limit));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ReadSome(const Fd& fd, absl::Span<std::byte> bytes) {
  const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), 0);
  if (n > 0) return static_cast<size_t>(n);
  if (n == 0) return absl::UnavailableError("the peer closed the connection");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return size_t{0};
  }
  return ErrnoError("recv", errno);
}

absl::Status ReadAll(const Fd& fd, absl::Span<std::byte> bytes,
                     const WaitLimit& limit) {
  while (!bytes.empty()) {
    ASSIGN_OR_RETURN(const size_t n, ReadSome(fd, bytes));
    bytes.remove_prefix(n);
    if (n == 0) RETURN_IF_ERROR(WaitFor(fd.get(), POLLIN, limit));
  }
  return absl::OkStatus();
}

}  // namespace baton::transfer
