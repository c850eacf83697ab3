// baton.v1.DecodeService: makes one DecodeCall per call.
#pragma once

#include <atomic>

#include "baton/v1/decode.grpc.pb.h"
#include "decode_worker/service/decode_call.h"

namespace baton::decode_worker {

// Exists before the worker has loaded; refuses calls until SetBackend.
// Thread-safe.
class DecodeService final : public v1::DecodeService::CallbackService {
 public:
  // `backend` outlives the server.
  void SetBackend(DecodeBackend* backend) {
    backend_.store(backend, std::memory_order_release);
  }

  grpc::ServerBidiReactor<v1::DecodeRequest, v1::DecodeResponse>* Decode(
      grpc::CallbackServerContext* context) override {
    return DecodeCall::Begin(backend_.load(std::memory_order_acquire), context);
  }

 private:
  // Published once, when loading is over.
  std::atomic<DecodeBackend*> backend_{nullptr};
};

}  // namespace baton::decode_worker
