#include "router/frontend/inference_service.h"

#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/request/request.h"
#include "common/rpc/status.h"
#include "router/frontend/generate_reactor.h"

namespace baton::router::frontend {
namespace {

constexpr size_t kIdHexDigits = 32;

absl::StatusOr<RequestId> IdFromHex(const std::string& hex) {
  const bool digits =
      hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (hex.size() != kIdHexDigits || !digits) {
    return request::InvalidField("id",
                                 "expected the 32 lower-case hex digits "
                                 "of Started.id");
  }
  return FromBytes<RequestId>(absl::HexStringToBytes(hex));
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto* const reactor = new GenerateReactor(&deps_, context, request);
  if (draining_.load(std::memory_order_relaxed)) {
    reactor->FinishEarly(request::MakeError(
        absl::StatusCode::kUnavailable, "this router is shutting down",
        {.reason = request::ErrorReason::kDraining}));
  } else {
    reactor->Begin();
  }
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Abort(
    grpc::CallbackServerContext* context, const v1::AbortRequest* request,
    v1::AbortResponse* /*response*/) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<RequestId> id = IdFromHex(request->id());
  if (!id.ok()) {
    reactor->Finish(rpc::ToGrpc(id.status()));
    return reactor;
  }
  const bool found = deps_.table->Cancel(
      *id,
      request::MakeError(absl::StatusCode::kCancelled, "cancelled by Abort",
                         {.reason = request::ErrorReason::kCancelled}));
  reactor->Finish(rpc::ToGrpc(
      found ? absl::OkStatus()
            : absl::NotFoundError(absl::StrCat("no request ", request->id(),
                                               " runs at this router"))));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(
    grpc::CallbackServerContext* context,
    const v1::GetModelInfoRequest* /*request*/,
    v1::GetModelInfoResponse* response) {
  const registry::Registry& registry = *deps_.run->registry;
  response->set_model_digest(absl::BytesToHexString(registry.model_digest()));
  response->set_context_tokens(deps_.facts.context_tokens);
  response->set_vocab_size(deps_.facts.vocab_size);
  response->set_state_format(registry.state_format());
  std::set<std::string> policies;
  for (const registry::WorkerView& worker : *registry.snapshot()) {
    if (worker.state == registry::WorkerState::kServing) {
      policies.insert(worker.identity->compute_policy);
    }
  }
  response->set_compute_policy(absl::StrJoin(policies, "; "));
  response->set_version(deps_.version);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton::router::frontend
