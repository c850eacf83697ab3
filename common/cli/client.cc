#include "common/cli/client.h"

#include "absl/strings/str_cat.h"
#include "common/request/request.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"

namespace baton::cli {

Client::Client(const std::string& address)
    : channel_(rpc::CreateChannel(address)),
      stub_(v1::InferenceService::NewStub(channel_)) {}

absl::Status Client::Generate(
    const v1::GenerateRequest& request, absl::Duration timeout,
    const std::function<bool(const v1::GenerateResponse&)>& on_event) const {
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(timeout));
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  bool wanted = true;
  while (reader->Read(&response)) {
    if (wanted && !on_event(response)) {
      wanted = false;
      context.TryCancel();
    }
  }
  return rpc::FromGrpc(reader->Finish());
}

absl::StatusOr<v1::GetModelInfoResponse> Client::ModelInfo() const {
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(10)));
  v1::GetModelInfoResponse response;
  const absl::Status status = rpc::FromGrpc(
      stub_->GetModelInfo(&context, v1::GetModelInfoRequest(), &response));
  if (!status.ok()) return status;
  return response;
}

std::string Describe(const absl::Status& status) {
  const request::ErrorInfo info = request::InfoOf(status);
  std::string out = absl::StrCat(absl::StatusCodeToString(status.code()));
  if (info.reason != request::ErrorReason::kUnspecified) {
    absl::StrAppend(&out, " (", request::ErrorReasonName(info.reason), ")");
  }
  absl::StrAppend(&out, ": ", status.message());
  if (info.retry_delay_ms > 0) {
    absl::StrAppend(&out, "; retry after ", info.retry_delay_ms, " ms");
  }
  return out;
}

}  // namespace baton::cli
