#include "common/worker/worker_runtime.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

// Segments of 8 MiB that may be in flight: two on each of up to four links.
constexpr int64_t kStagingBytes = int64_t{8} * (int64_t{8} << 20);

double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Activations of one step: per token the hyper-connection streams (read,
// written and mixed), query heads and attention output, the experts' hidden
// rows and logits, all fp32. An upper estimate: most of them are never alive
// together.
int64_t WorkspaceBytes(const checkpoint::ModelConfig& config,
                       int32_t max_step_tokens) {
  const int64_t streams = int64_t{3} * config.hc_mult * config.hidden_size;
  const int64_t heads =
      int64_t{2} * config.num_attention_heads * config.head_dim;
  const int64_t experts =
      int64_t{3} * (config.num_experts_per_tok + config.n_shared_experts) *
      config.moe_intermediate_size;
  const int64_t floats =
      streams + heads + experts + int64_t{4} * config.hidden_size +
      int64_t{config.index_n_heads} * config.index_head_dim + config.vocab_size;
  return floats * max_step_tokens * static_cast<int64_t>(sizeof(float));
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> MemoryPlan::Uses() const {
  return {{"weights", weights_bytes},     {"pages", pages_bytes},
          {"slots", slots_bytes},         {"staging", staging_bytes},
          {"workspace", workspace_bytes}, {"headroom", headroom_bytes()}};
}

std::string MemoryPlan::ToString() const {
  return absl::StrCat(absl::StrJoin(Uses(), " ",
                                    [](std::string* out, const auto& use) {
                                      absl::StrAppendFormat(out, "%s=%.1fMiB",
                                                            use.first,
                                                            Mib(use.second));
                                    }),
                      absl::StrFormat(" limit=%.1fMiB physical=%.1fMiB",
                                      Mib(limit_bytes), Mib(physical_bytes)));
}

absl::Status MemoryPlan::Check() const {
  if (headroom_bytes() >= 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "the memory plan needs %d bytes and may use %d: %s; lower --blocks, "
      "--slots or --max-step-tokens, or change --memory-fraction or "
      "--reserve-memory",
      total_bytes(), limit_bytes, ToString()));
}

int64_t PhysicalMemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
                  static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  // "max" or a number; absent outside control group v2.
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::string text;
  int64_t limit = 0;
  if (file >> text && absl::SimpleAtoi(text, &limit) && limit > 0) {
    bytes = std::min(bytes, limit);
  }
  return bytes;
}

absl::StatusOr<MemoryPlan> PlanMemory(const PlanMemoryInputs& inputs,
                                      const WorkerOptions& options) {
  // One block and one slot say what each costs, whatever the store's layout is.
  ASSIGN_OR_RETURN(const auto probe, kv::KvStore::Create(inputs.format, 1, 1));
  MemoryPlan plan;
  plan.weights_bytes = inputs.tensor_bytes;
  plan.pages_bytes = probe->page_bytes() * options.blocks;
  plan.slots_bytes = probe->slot_bytes() * options.slots;
  plan.staging_bytes = kStagingBytes;
  plan.workspace_bytes = WorkspaceBytes(inputs.config, options.max_step_tokens);
  plan.physical_bytes = inputs.physical_bytes;
  plan.limit_bytes =
      static_cast<int64_t>(static_cast<double>(inputs.physical_bytes) *
                           options.memory_fraction) -
      options.reserve_memory_bytes;
  return plan;
}

absl::StatusOr<std::unique_ptr<WorkerRuntime>> WorkerRuntime::Create(
    const WorkerOptions& options) {
  auto runtime = std::unique_ptr<WorkerRuntime>(new WorkerRuntime);
  ASSIGN_OR_RETURN(runtime->checkpoint_,
                   checkpoint::Checkpoint::Open(options.model));
  const checkpoint::ModelConfig& config = runtime->checkpoint_->config();

  model::ModelOptions& model_options = runtime->model_options_;
  ASSIGN_OR_RETURN(model_options.policy,
                   model::ComputePolicyFromName(options.policy));
  model_options.policy.index_topk = config.index_topk;
  ASSIGN_OR_RETURN(model_options.format,
                   kv::StateFormatFromName(options.state_format,
                                           model::Model::GeometryOf(config)));
  model_options.max_step_tokens = options.max_step_tokens;
  model_options.max_step_spans =
      std::min(options.slots, options.max_step_tokens);

  ASSIGN_OR_RETURN(
      runtime->memory_plan_,
      PlanMemory({.tensor_bytes = runtime->checkpoint_->tensor_bytes(),
                  .config = config,
                  .format = model_options.format,
                  .physical_bytes = PhysicalMemoryBytes()},
                 options));
  LogInfo("memory_plan", {{"plan", runtime->memory_plan_.ToString()}});
  RETURN_IF_ERROR(runtime->memory_plan_.Check());

  runtime->threads_ = std::make_unique<device::ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(
      runtime->store_,
      kv::KvStore::Create(model_options.format, options.blocks, options.slots));
  runtime->pool_ =
      std::make_unique<kv::BlockPool>(options.blocks, options.slots);
  ASSIGN_OR_RETURN(
      runtime->model_,
      model::Model::Create(runtime->checkpoint_.get(), model_options,
                           runtime->threads_.get()));
  runtime->state_format_hash_ = model_options.format.Hash();
  if (options.poison_free_pages) {
    for (int32_t i = 0; i < options.blocks; ++i) {
      runtime->store_->PoisonBlock(BlockId{i});
    }
    for (int32_t i = 0; i < options.slots; ++i) {
      runtime->store_->PoisonSlot(i);
    }
  }
  for (const std::string& path : runtime->model_->KernelPaths()) {
    LogInfo("kernel_path", {{"path", path}});
  }
  LogInfo("model_loaded",
          {{"dir", options.model},
           {"digest", HexOf(runtime->model_digest())},
           {"state_format", model_options.format.ToString()},
           {"policy", runtime->model_->policy().ToString()},
           {"max_positions", runtime->model_->max_positions()}});
  return runtime;
}

WorkerRuntime::~WorkerRuntime() = default;

}  // namespace baton::worker
