// Which prompts get how many tokens of the next step. Pure bookkeeping: knows
// lengths and order, nothing of memory, models or calls.
//
// Non-final chunks end at multiples of `chunk_alignment` positions, so that no
// C4 or C128 row straddles two chunks in production (design.md 2). Policy:
//  1. The oldest prompt takes up to half of the step (none of it when the step
//     holds a single alignment unit): first in, first out, so that under load
//     somebody finishes early instead of everybody late.
//  2. What is left goes round: one alignment unit (or the whole rest, if that
//     is less) per prompt, in order of how long ago each was served last. So a
//     short prompt behind a long one waits for one step, and any prompt is
//     served at least once in as many steps as there are prompts.
//  3. Further rounds until nothing fits.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::prefill_worker {

// Number of one prompt in this worker; minted by the engine, never reused.
enum class PromptId : int64_t {};

struct SchedulerOptions {
  int32_t max_step_tokens = 512;  // budget of one step over all prompts
  int32_t max_step_prompts = 64;  // prompts of one step
  int32_t chunk_tokens = 512;     // of one prompt in one step, at most
  // Non-final chunk ends are multiples of this. Tests choose 1 to cut anywhere.
  int32_t chunk_alignment = 256;
};

// InvalidArgument unless all are positive and max_step_tokens and chunk_tokens
// hold one alignment unit (chunk_tokens a whole number of them).
absl::Status ValidateSchedulerOptions(const SchedulerOptions& options);

// Tokens [first, first + tokens) of a prompt, to be run in the next step.
struct Chunk {
  PromptId prompt{};
  int64_t first = 0;
  int32_t tokens = 0;
  bool final = false;  // ends the prompt
  bool operator==(const Chunk&) const = default;
};

// Owned by the step loop's thread.
class Scheduler final {
 public:
  // CHECK-fails on options that ValidateSchedulerOptions refuses.
  explicit Scheduler(const SchedulerOptions& options);

  // A prompt of >= 1 tokens joins at the end. CHECK-fails for a known id.
  void Add(PromptId prompt, int64_t prompt_tokens);
  // Leaves at once (cancelled, failed); no-op for an unknown or finished one.
  void Remove(PromptId prompt);

  // The chunks of the next step, at most one per prompt; empty without prompts.
  // Changes the rotation, not the progress: Commit says what was processed.
  std::vector<Chunk> PlanStep();
  // The chunk has been processed. A prompt leaves with its final chunk; no-op
  // for a prompt that was removed meanwhile.
  void Commit(const Chunk& chunk);

  bool empty() const { return prompts_.empty(); }
  int64_t num_prompts() const { return static_cast<int64_t>(prompts_.size()); }
  // Tokens not yet processed, over all prompts.
  int64_t backlog_tokens() const { return backlog_tokens_; }
  // Prompts in order of arrival.
  const std::deque<PromptId>& arrivals() const { return arrivals_; }
  // Tokens not yet processed of one prompt; 0 for an unknown one.
  int64_t remaining_tokens(PromptId prompt) const;

 private:
  struct Prompt {
    int64_t tokens = 0;
    int64_t processed = 0;
  };

  // Tokens that may extend a chunk of `prompt` that already has `taken`, within
  // `limit`: the whole rest, or up to an aligned end; 0 when nothing fits.
  int32_t Extension(const Prompt& prompt, int32_t taken, int32_t limit) const;

  const SchedulerOptions options_;
  absl::flat_hash_map<PromptId, Prompt> prompts_;
  std::deque<PromptId> arrivals_;  // oldest first
  std::deque<PromptId> rotation_;  // longest unserved first
  int64_t backlog_tokens_ = 0;
};

}  // namespace baton::prefill_worker
