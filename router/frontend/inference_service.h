// InferenceService: the public API.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "router/dispatch/run.h"
#include "router/frontend/run_table.h"
#include "router/frontend/validate.h"
#include "router/frontend/work_pool.h"
#include "router/registry/registry.h"

namespace baton::router::frontend {

// All outlive the service and its calls.
struct InferenceServiceDeps {
  const dispatch::RunContext* run = nullptr;
  const Validator* validator = nullptr;
  RunTable* table = nullptr;
  WorkPool* pool = nullptr;
  ModelFacts facts;
  std::string version;
};

// Thread-safe. Generate takes raw bytes so that a message that protobuf refuses
// is answered with a reason (request_parser.h).
class InferenceService final
    : public v1::InferenceService::WithRawCallbackMethod_Generate<
          v1::InferenceService::WithCallbackMethod_Abort<
              v1::InferenceService::WithCallbackMethod_GetModelInfo<
                  v1::InferenceService::Service>>> {
 public:
  explicit InferenceService(InferenceServiceDeps deps)
      : deps_(std::move(deps)) {}

  // New Generate calls are refused with UNAVAILABLE kDraining from now on.
  void StopAccepting() { draining_.store(true, std::memory_order_relaxed); }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context,
      const v1::GetModelInfoRequest* request,
      v1::GetModelInfoResponse* response) override;

 private:
  const InferenceServiceDeps deps_;
  std::atomic<bool> draining_{false};  // flag: set once
};

}  // namespace baton::router::frontend
