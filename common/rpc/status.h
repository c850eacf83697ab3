// The one place that maps absl::Status to gRPC and back. The reason, field and
// retry delay of request::ErrorInfo travel as an ErrorDetail.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton::rpc {

grpc::Status ToGrpc(const absl::Status& status);

// What a peer said. A status without a detail keeps its code and message;
// UNKNOWN (a transport or library fault) becomes UNAVAILABLE, so that a dead
// channel is never taken for an answer.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace baton::rpc
