// Admission of the decode worker: blocks, slots and batch seats for all samples
// of a request, or nothing, and never waited for (design.md 2).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/kv/block_pool.h"

namespace baton::decode_worker {

// What n samples of one prompt hold together. Full blocks of the prompt are
// immutable and shared; everything from the first position that a sample may
// write on is private to it.
struct MemoryNeed {
  int64_t positions = 0;      // of one sample: prompt + max_tokens - 1
  int32_t table_blocks = 0;   // of one sample's block table
  int32_t shared_blocks = 0;  // leading blocks that all samples share
  int32_t total_blocks = 0;
  int32_t slots = 0;
};
// `prompt_tokens`, `max_tokens` and `samples` are at least 1.
MemoryNeed NeedOf(int64_t prompt_tokens, int32_t max_tokens, int32_t samples);

// One sample's share of a reservation.
struct SampleMemory {
  kv::OwnerId owner{};
  std::vector<BlockId> blocks = {};  // its whole block table, shared ones first
  int32_t slot = -1;
};

// Everything a request holds before its hand-off commits, under one owner.
struct Reservation {
  kv::OwnerId owner{};
  MemoryNeed need;
  std::vector<BlockId> blocks;  // [total]: table of sample 0, then private ones
  std::vector<int32_t> slots;   // [samples]

  // Block table of one sample.
  std::vector<BlockId> TableOf(int32_t sample) const;
};

struct SchedulerOptions {
  kv::BlockPool* pool = nullptr;  // outlives the scheduler
  int32_t max_seats = 0;          // sequences in one step at most
  int64_t max_positions = 0;      // context of the model
  int64_t retry_delay_ms = 100;   // mean of the jittered delay of a refusal
  Random* random = nullptr;       // jitter only
};

// Owned by the step loop; not thread-safe.
class Scheduler final {
 public:
  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  // INVALID_ARGUMENT with kContextExceeded or kNeverFits when no state of this
  // worker could hold it; RESOURCE_EXHAUSTED with kOverloaded and a jittered
  // delay when not now. Nothing is held after an error.
  absl::StatusOr<Reservation> Reserve(int64_t prompt_tokens, int32_t max_tokens,
                                      int32_t samples);
  // The hand-off is committed: each sample becomes an owner of its own.
  std::vector<SampleMemory> Activate(const Reservation& reservation);
  // Returns what an uncommitted reservation holds.
  void Release(const Reservation& reservation);
  // Returns what one activated sample holds.
  void Release(const SampleMemory& sample);

  int32_t seats_taken() const { return seats_taken_; }
  int32_t max_seats() const { return options_.max_seats; }
  // A delay in [0.5, 1.5) of the mean, so that refused routers do not return
  // together.
  int64_t JitteredDelayMs();

 private:
  const SchedulerOptions options_;
  int32_t seats_taken_ = 0;
};

}  // namespace baton::decode_worker
