// baton.v1.PrefillService: translates messages to prompts and back, and
// enqueues. It never computes and never blocks.
#pragma once

#include <atomic>

#include "baton/v1/prefill.grpc.pb.h"
#include "common/base/clock.h"
#include "prefill_worker/engine/prompt.h"

namespace baton::prefill_worker {

// Thread-safe. Calls before SetIntake end with UNAVAILABLE.
class PrefillServiceImpl final : public v1::PrefillService::CallbackService {
 public:
  // `clock` is the engine's: deadlines are converted to it.
  explicit PrefillServiceImpl(Clock* clock) : clock_(clock) {}

  // `intake` outlives every call. Set once.
  void SetIntake(PromptIntake* intake) {
    intake_.store(intake, std::memory_order_release);
  }

  // One reactor per call: at most one write is outstanding, further messages
  // wait in a list that is bounded because progress messages replace each
  // other.
  grpc::ServerBidiReactor<v1::PrefillRequest, v1::PrefillResponse>* Prefill(
      grpc::CallbackServerContext* context) override;

 private:
  Clock* const clock_;
  // Published once with release; readers use it after acquire.
  std::atomic<PromptIntake*> intake_{nullptr};
};

}  // namespace baton::prefill_worker
