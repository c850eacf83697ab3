#include "common/rpc/status.h"

#include <string>

#include "baton/v1/types.pb.h"
#include "common/request/request.h"

namespace baton::rpc {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message(status.message());
  v1::RichStatus rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(message);
  const request::ErrorInfo info = request::InfoOf(status);
  v1::ErrorDetail detail;
  detail.set_reason(static_cast<v1::ErrorReason>(info.reason));
  detail.set_field(info.field);
  detail.set_retry_delay_ms(info.retry_delay_ms);
  rich.add_details()->PackFrom(detail);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      rich.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnknown) code = absl::StatusCode::kUnavailable;
  v1::RichStatus rich;
  v1::ErrorDetail detail;
  if (rich.ParseFromString(status.error_details()) && rich.details_size() > 0 &&
      rich.details(0).UnpackTo(&detail)) {
    return request::MakeError(
        code, status.error_message(),
        {.reason = static_cast<request::ErrorReason>(detail.reason()),
         .field = detail.field(),
         .retry_delay_ms = detail.retry_delay_ms()});
  }
  return absl::Status(code, status.error_message());
}

}  // namespace baton::rpc
