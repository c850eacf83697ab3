// Blocking client of the public API for the command line and the load tools.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"

namespace baton::cli {

// Thread-safe.
class Client final {
 public:
  explicit Client(const std::string& address);

  // Runs one generation; `on_event` sees every event in order and returns
  // false to cancel. The final status is the call's (CANCELLED after false).
  absl::Status Generate(
      const v1::GenerateRequest& request, absl::Duration timeout,
      const std::function<bool(const v1::GenerateResponse&)>& on_event) const;
  absl::StatusOr<v1::GetModelInfoResponse> ModelInfo() const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

// One line for people: code, reason, message and when to retry.
std::string Describe(const absl::Status& status);

// "127.0.0.1:50051", the public address that the router listens on by default.
inline constexpr char kDefaultAddress[] = "127.0.0.1:50051";
inline constexpr char kDefaultClusterAddress[] = "127.0.0.1:50052";

}  // namespace baton::cli
