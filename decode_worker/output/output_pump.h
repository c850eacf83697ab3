// The thread between the step loop and the calls: after each step it tells the
// calls with news that they can write. Rendering text and starting writes
// happen on it, or on gRPC's threads when a write completes; never in the step
// loop.
#pragma once

#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "decode_worker/output/request_output.h"

namespace baton::decode_worker {

// Thread-safe. The queue is bounded by steps x open requests between two turns
// of the thread; an output is queued again only by a further step.
class OutputPump final {
 public:
  using Outputs = std::vector<std::shared_ptr<RequestOutput>>;

  OutputPump();
  // Delivers what is queued, then joins.
  ~OutputPump();

  // Takes the outputs with news of one step; leaves `outputs` empty.
  void Notify(Outputs* outputs);

 private:
  void Run();

  Mutex mu_;
  CondVar wake_;
  Outputs queue_ BATON_GUARDED_BY(mu_);
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace baton::decode_worker
