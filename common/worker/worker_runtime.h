// What a worker of either role owns beneath its step loop: checkpoint, compute
// threads, model, cached state and the ledger, sized by a memory plan that is
// checked before anything large is allocated (design.md 1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "common/device/thread_pool.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"
#include "common/worker/worker_options.h"

namespace baton::worker {

// Bytes per use; the names are the label values of baton_device_memory_bytes.
struct MemoryPlan {
  int64_t weights_bytes = 0;
  int64_t pages_bytes = 0;
  int64_t slots_bytes = 0;
  int64_t staging_bytes = 0;    // segments in flight on links
  int64_t workspace_bytes = 0;  // one step's activations, an upper estimate
  int64_t physical_bytes = 0;
  int64_t limit_bytes = 0;  // physical x fraction - reserve

  int64_t total_bytes() const {
    return weights_bytes + pages_bytes + slots_bytes + staging_bytes +
           workspace_bytes;
  }
  int64_t headroom_bytes() const { return limit_bytes - total_bytes(); }
  // (use, bytes), headroom last.
  std::vector<std::pair<std::string, int64_t>> Uses() const;
  // One line for people.
  std::string ToString() const;
  // FAILED_PRECONDITION with every number and the flags that change them when
  // the total exceeds the limit.
  absl::Status Check() const;
};

// Physical memory, or the control group's limit when that is lower.
int64_t PhysicalMemoryBytes();

struct PlanMemoryInputs {
  int64_t tensor_bytes = 0;
  checkpoint::ModelConfig config;
  kv::StateFormat format;
  int64_t physical_bytes = 0;
};
// The plan that `options` ask for; does not judge it.
absl::StatusOr<MemoryPlan> PlanMemory(const PlanMemoryInputs& inputs,
                                      const WorkerOptions& options);

// Created by main, before the step loop starts; afterwards model, store and
// pool belong to the step loop's thread. Everything else is immutable.
class WorkerRuntime final {
 public:
  // Errors of the checkpoint reader and of the model pass through;
  // FAILED_PRECONDITION when the plan does not fit. Logs the plan.
  static absl::StatusOr<std::unique_ptr<WorkerRuntime>> Create(
      const WorkerOptions& options);
  ~WorkerRuntime();

  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  model::Model* model() { return model_.get(); }
  kv::KvStore* store() { return store_.get(); }
  kv::BlockPool* pool() { return pool_.get(); }

  const kv::StateFormat& state_format() const { return store_->format(); }
  const Sha256Digest& state_format_hash() const { return state_format_hash_; }
  const Sha256Digest& model_digest() const { return checkpoint_->digest(); }
  const model::ModelOptions& model_options() const { return model_options_; }
  const MemoryPlan& memory_plan() const { return memory_plan_; }

 private:
  WorkerRuntime() = default;

  // In order of creation: destroyed in reverse.
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  MemoryPlan memory_plan_;
  model::ModelOptions model_options_;
  Sha256Digest state_format_hash_{};
  std::unique_ptr<device::ThreadPool> threads_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace baton::worker
