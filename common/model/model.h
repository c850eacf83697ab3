// The DeepSeek-V4 forward pass (model.md 5) over spans of sequences. Prefill
// chunks, decode tokens and later draft verification are the same thing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint.h"
#include "common/device/thread_pool.h"
#include "common/kv/kv_store.h"
#include "common/kv/state_format.h"
#include "common/model/compute_policy.h"

namespace baton::model {

// Which rows of a span's logits are wanted.
enum class LogitsWanted : uint8_t { kNone, kLast, kAll };

// `tokens` consecutive tokens of one sequence from `first_position` on. The
// sequence's cached state must hold exactly first_position processed tokens.
struct Span {
  kv::SequenceView sequence;
  int64_t first_position = 0;
  absl::Span<const int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kNone;
};

// The host's plan of one step: flat arrays with fixed capacity that Run reads
// without any further decision (a CUDA graph can be captured over them).
struct StepInputs {
  int32_t num_tokens = 0;
  int32_t num_spans = 0;
  std::vector<int32_t> token_ids;      // [max_tokens]
  std::vector<int64_t> positions;      // [max_tokens]
  std::vector<int32_t> span_of_token;  // [max_tokens]
  std::vector<int64_t> span_first;     // [max_spans] first position
  std::vector<int32_t> span_begin;     // [max_spans + 1] first flat token
  std::vector<int32_t> slots;          // [max_spans]
  std::vector<int32_t> block_tables;   // [max_spans, max_blocks], padded -1
  int32_t max_blocks = 0;              // row stride of block_tables
  int32_t num_logits = 0;
  std::vector<int32_t> logits_rows;  // [max_tokens] flat token per logits row
};

// Hidden-state taps for the oracle and for drafters; empty when not asked for.
struct StepTaps {
  // Flat tokens to tap; filled in the same order.
  std::vector<int32_t> rows;
  // hidden[k]: k = 0 the embedding in its streams, k = 1..L-1 the streams after
  // layer k-1, each [rows, hc_mult, D]; k = L after the final norm, [rows, D].
  std::vector<std::vector<float>> hidden;
};

struct ModelOptions {
  ComputePolicy policy;
  kv::StateFormat format;
  int32_t max_step_tokens = 512;  // capacity of one step
  int32_t max_step_spans = 64;
  int64_t max_positions = 0;  // 0: the checkpoint's
};

// Owned and driven by one thread (the step loop). Weights are shared and
// immutable.
class Model final {
 public:
  // Takes the checkpoint's tensors by reference: `checkpoint` outlives it.
  static absl::StatusOr<std::unique_ptr<Model>> Create(
      const checkpoint::Checkpoint* checkpoint, const ModelOptions& options,
      device::ThreadPool* pool);
  ~Model();

  // StateGeometry that a checkpoint's config implies.
  static kv::StateGeometry GeometryOf(const checkpoint::ModelConfig& config);

  // Validates the spans against the capacities (InvalidArgument names the
  // limit) and lays them out. Token ids outside the vocabulary are refused.
  absl::StatusOr<StepInputs> Plan(absl::Span<const Span> spans) const;

  // One forward pass: writes rows, rings and tails of every span into `store`
  // and `logits` [num_logits, vocab] fp32 for the rows asked for. The result of
  // a token has the same bits whatever else is in the step and however a prompt
  // is cut into spans. NaN in the logits is Internal.
  absl::Status Run(const StepInputs& inputs, kv::KvStore* store,
                   std::vector<float>* logits, StepTaps* taps = nullptr);

  const checkpoint::ModelConfig& config() const;
  const ComputePolicy& policy() const;
  int32_t vocab_size() const;
  int64_t max_positions() const;
  // Bytes of weights that one decode step of batch 1 reads, as stored.
  int64_t decode_weight_bytes() const;
  int64_t weight_bytes() const;
  // "op phase arch path" lines for baton_kernel_path_info.
  std::vector<std::string> KernelPaths() const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A sequence's progress over the model: which tokens are processed. `Commit`
// is separate from Run so that speculation can accept fewer than were run; with
// ring capacity window_tokens (no draft room) accepted must equal the span.
struct SequenceState {
  std::vector<BlockId> blocks;
  int32_t slot = -1;
  int64_t processed = 0;

  kv::SequenceView view() const { return {blocks, slot}; }
  void Commit(int64_t accepted) { processed += accepted; }
};

// Makes `to` continue where `from` stands: full blocks are shared (the caller
// has put their ids into to->blocks), the partly filled last block and the slot
// are copied into to's private ones.
void Fork(const SequenceState& from, SequenceState* to, kv::KvStore* store);

}  // namespace baton::model
