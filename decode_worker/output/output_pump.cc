#include "decode_worker/output/output_pump.h"

#include <algorithm>
#include <iterator>

namespace baton::decode_worker {

OutputPump::OutputPump() : thread_("output-pump", [this] { Run(); }) {}

OutputPump::~OutputPump() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.Signal();
  }
  thread_.Join();
}

void OutputPump::Notify(Outputs* outputs) {
  if (outputs->empty()) return;
  MutexLock lock(&mu_);
  if (queue_.empty()) {
    queue_.swap(*outputs);
  } else {
    std::move(outputs->begin(), outputs->end(), std::back_inserter(queue_));
    outputs->clear();
  }
  wake_.Signal();
}

void OutputPump::Run() {
  Outputs batch;
  for (;;) {
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) wake_.Wait(&mu_);
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    // Several steps may have passed: one notice per output is enough.
    std::sort(batch.begin(), batch.end());
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
    for (const std::shared_ptr<RequestOutput>& output : batch) {
      output->NotifyReady();
    }
    batch.clear();
  }
}

}  // namespace baton::decode_worker
