// How the end of a leg is read.
#pragma once

#include "absl/status/status.h"
#include "common/request/request.h"

namespace baton::router::dispatch {

// "Not now": nothing is held there, another worker may have room.
inline bool IsRefusal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted ||
         (status.code() == absl::StatusCode::kUnavailable &&
          request::InfoOf(status).reason == request::ErrorReason::kDraining);
}

// The worker or the way to it is broken, as far as one call can tell. CANCELLED
// counts: a call that we did not cancel was cancelled by a dying transport.
inline bool IsWorkerFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

}  // namespace baton::router::dispatch
