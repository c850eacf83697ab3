// A gRPC server with our limits, keepalive, health service and, when asked for,
// reflection.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::rpc {

inline constexpr int kMaxMessageBytes = 16 << 20;

struct ServerOptions {
  std::string address;  // host:port; port 0 lets the system choose
  std::vector<grpc::Service*> services;  // outlive the server
  int max_message_bytes = kMaxMessageBytes;
  bool reflection = false;
};

// Thread-safe.
class Server final {
 public:
  // UNAVAILABLE when the address cannot be bound (in use, not ours). Starts
  // NOT_SERVING.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);
  ~Server();

  int port() const { return port_; }
  // host:port with the real port.
  const std::string& address() const { return address_; }
  // What grpc.health.v1 answers, for the server as a whole ("").
  void SetServing(bool serving);
  // No new calls; running ones have `grace` to end, then they are cancelled.
  // Returns when all have ended. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  Server() = default;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::string address_;
  bool shut_down_ = false;
};

// Channel with our keepalive, size limits and quick reconnects. Each call gives
// a channel with connections of its own, so that a dead one is never inherited.
std::shared_ptr<grpc::Channel> CreateChannel(const std::string& endpoint);

// gRPC deadline that lies `left` from now (at most a day).
std::chrono::system_clock::time_point DeadlineIn(absl::Duration left);
// What is left of a call's deadline; infinite when there is none.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

}  // namespace baton::rpc
