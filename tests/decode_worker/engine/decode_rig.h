// An engine with the demo model and a hand-off that is faked by a local prefill
// through the same model and store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/device/thread_pool.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/testing/fake_clock.h"
#include "decode_worker/engine/engine.h"
#include "decode_worker/metrics/decode_metrics.h"
#include "tests/decode_worker/collected.h"
#include "tests/decode_worker/fake_receiver.h"

namespace baton::decode_worker {

struct DecodeRigOptions {
  int32_t blocks = 32;
  int32_t slots = 64;
  int32_t seats = 64;
};

// Used by one thread.
class DecodeRig final {
 public:
  explicit DecodeRig(const DecodeRigOptions& options = {});

  // One request as the test sees it.
  struct Call {
    HandoffId handoff;
    std::vector<int32_t> prompt;
    std::shared_ptr<RequestOutput> output;
    Collected got;
  };
  // What a test changes of a request; n, max_tokens, ... in `sampling`.
  struct Ask {
    std::vector<int32_t> prompt;
    request::SamplingParams sampling;
    std::optional<int32_t> logprobs;
    absl::Duration deadline = absl::InfiniteDuration();
    HandoffId handoff;  // zero: a new one
  };
  // Hands the request to the engine; refused or not, there is a Call.
  std::unique_ptr<Call> Start(const Ask& ask);
  // Runs the prompt into the reserved memory and lets the receiver verify it.
  void Prefill(const Call& call);
  // Reads all events of a call.
  void Read(Call* call) { call->got.Drain(call->output.get()); }
  // Iterates until no step runs any more.
  void RunSteps();
  // Start, Prefill, run to the end, Read.
  std::unique_ptr<Call> Complete(const Ask& ask);
  // Everything is back and the ledger is right.
  void ExpectEmpty();

  Engine& engine() { return *engine_; }
  kv::BlockPool& pool() { return *pool_; }
  model::Model& model() { return *model_; }

  testing::FakeClock clock;
  FakeReceiver receiver;
  metrics::MetricSet metric_set;

 private:
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<kv::BlockPool> pool_;
  SeededRandom random_{3};
  DecodeMetrics metrics_;
  std::unique_ptr<Engine> engine_;
};

// Ids of a prompt of this many tokens, different for each `kind`.
std::vector<int32_t> PromptOf(int64_t tokens, int32_t kind);

}  // namespace baton::decode_worker
