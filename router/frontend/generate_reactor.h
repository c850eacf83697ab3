// One Generate call: reads the request off gRPC's threads, then is the client's
// side of a Run.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "baton/v1/inference.pb.h"
#include "common/base/mutex.h"
#include "router/dispatch/legs.h"
#include "router/dispatch/run.h"
#include "router/frontend/inference_service.h"

namespace baton::router::frontend {

v1::GenerateResponse ResponseFromEvent(const dispatch::ClientEvent& event);

// Life: made by the service, deletes itself in OnDone, which gRPC calls after
// Finish and after all other callbacks. Exactly one of FinishEarly and the run
// calls Finish.
class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public dispatch::ClientSink {
 public:
  GenerateReactor(const InferenceServiceDeps* deps,
                  grpc::CallbackServerContext* context,
                  const grpc::ByteBuffer* request)
      : deps_(deps),
        context_(context),
        request_(*request),
        accepted_(deps->run->clock->Now()) {}

  // Takes a place in the admission queue and posts the parsing.
  void Begin();
  // Answers without a run.
  void FinishEarly(const absl::Status& status);

  // ClientSink
  void Write(const dispatch::ClientEvent& event) override;
  void Cut(const absl::Status& why) override;
  void Finish(const absl::Status& status) override;

  // grpc::ServerWriteReactor
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::StatusOr<dispatch::RequestSpec> Parse();
  void MakeRun();

  const InferenceServiceDeps* const deps_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer request_;
  const absl::Time accepted_;
  grpc::ByteBuffer response_;
  // What Started says of the request.
  v1::Started started_;

  Mutex mu_;
  std::shared_ptr<dispatch::Run> run_ BATON_GUARDED_BY(mu_);
  bool cancelled_ BATON_GUARDED_BY(mu_) = false;
};

}  // namespace baton::router::frontend
