#include "tests/integration/health.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <vector>

#include "common/rpc/server.h"

namespace baton::integration {

HealthState Health(const std::string& address) {
  grpc::GenericStub stub(rpc::CreateChannel(address));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(2)));
  grpc::CompletionQueue queue;
  // An empty HealthCheckRequest asks for the whole server.
  grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  const auto call = stub.PrepareUnaryCall(
      &context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return HealthState::kUnreachable;
  std::vector<grpc::Slice> slices;
  reply.Dump(&slices).ok();
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  // HealthCheckResponse{status = 1}: field 1, varint; SERVING is 1.
  return bytes == "\x08\x01" ? HealthState::kServing : HealthState::kNotServing;
}

}  // namespace baton::integration
