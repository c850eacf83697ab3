#include "decode_worker/scheduler/scheduler.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/state_format.h"
#include "common/request/request.h"

namespace baton::decode_worker {
namespace {

using request::ErrorInfo;
using request::ErrorReason;

absl::Status NeverFits(absl::string_view what, int64_t wanted, int64_t limit) {
  return request::MakeError(absl::StatusCode::kInvalidArgument,
                            absl::StrCat("request needs ", wanted, " ", what,
                                         ", this worker has at most ", limit),
                            {.reason = ErrorReason::kNeverFits, .field = ""});
}

}  // namespace

MemoryNeed NeedOf(int64_t prompt_tokens, int32_t max_tokens, int32_t samples) {
  MemoryNeed need;
  need.positions = request::PositionsFor(prompt_tokens, max_tokens);
  need.table_blocks = kv::BlocksFor(need.positions);
  need.shared_blocks = static_cast<int32_t>(prompt_tokens / kv::kBlockTokens);
  need.total_blocks = need.table_blocks +
                      (samples - 1) * (need.table_blocks - need.shared_blocks);
  need.slots = samples;
  return need;
}

std::vector<BlockId> Reservation::TableOf(int32_t sample) const {
  const auto first = blocks.begin();
  if (sample == 0) return {first, first + need.table_blocks};
  std::vector<BlockId> table(first, first + need.shared_blocks);
  const int32_t own = need.table_blocks - need.shared_blocks;
  const auto begin = first + need.table_blocks + (sample - 1) * own;
  table.insert(table.end(), begin, begin + own);
  return table;
}

absl::StatusOr<Reservation> Scheduler::Reserve(int64_t prompt_tokens,
                                               int32_t max_tokens,
                                               int32_t samples) {
  CHECK(prompt_tokens >= 1 && max_tokens >= 1 && samples >= 1)
      << prompt_tokens << " " << max_tokens << " " << samples;
  const int64_t positions = request::PositionsFor(prompt_tokens, max_tokens);
  if (positions > options_.max_positions) {
    return request::MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("prompt of ", prompt_tokens, " tokens and max_tokens ",
                     max_tokens, " need ", positions,
                     " positions, the context has ", options_.max_positions),
        {.reason = ErrorReason::kContextExceeded, .field = "max_tokens"});
  }
  const kv::BlockCounts counts = options_.pool->counts();
  // In 64 bits before NeedOf: n private tables can exceed 2^31 blocks.
  const int64_t shared = prompt_tokens / kv::kBlockTokens;
  const int64_t table = kv::BlocksFor(positions);
  const int64_t total = table + (samples - 1) * (table - shared);
  if (total > counts.total) return NeverFits("blocks", total, counts.total);
  if (samples > counts.slots_total) {
    return NeverFits("slots", samples, counts.slots_total);
  }
  if (samples > options_.max_seats) {
    return NeverFits("batch seats", samples, options_.max_seats);
  }
  const MemoryNeed need = NeedOf(prompt_tokens, max_tokens, samples);
  if (seats_taken_ + samples > options_.max_seats) {
    return request::MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("no batch seats now: ", samples, " wanted, ",
                     options_.max_seats - seats_taken_, " of ",
                     options_.max_seats, " free"),
        {.reason = ErrorReason::kOverloaded,
         .field = "",
         .retry_delay_ms = JitteredDelayMs()});
  }
  absl::StatusOr<kv::BlockPool::Holding> holding = options_.pool->Acquire(
      need.total_blocks, need.slots, kv::BlockUse::kReservedIdle);
  if (!holding.ok()) {
    return request::MakeError(holding.status().code(),
                              holding.status().message(),
                              {.reason = ErrorReason::kOverloaded,
                               .field = "",
                               .retry_delay_ms = JitteredDelayMs()});
  }
  seats_taken_ += samples;
  return Reservation{.owner = holding->owner,
                     .need = need,
                     .blocks = std::move(holding->blocks),
                     .slots = std::move(holding->slots)};
}

std::vector<SampleMemory> Scheduler::Activate(const Reservation& reservation) {
  const MemoryNeed& need = reservation.need;
  std::vector<SampleMemory> samples;
  samples.reserve(reservation.slots.size());
  samples.push_back({.owner = reservation.owner,
                     .blocks = reservation.TableOf(0),
                     .slot = reservation.slots[0]});
  const auto shared_begin = reservation.blocks.begin();
  const std::vector<BlockId> shared(shared_begin,
                                    shared_begin + need.shared_blocks);
  for (int32_t i = 1; i < need.slots; ++i) {
    const int32_t slot = reservation.slots[static_cast<size_t>(i)];
    std::vector<BlockId> table = reservation.TableOf(i);
    const std::vector<BlockId> moved(table.begin() + need.shared_blocks,
                                     table.end());
    absl::StatusOr<kv::OwnerId> owner =
        options_.pool->Split(reservation.owner, shared, moved, {slot});
    CHECK_OK(owner);
    samples.push_back(
        {.owner = *owner, .blocks = std::move(table), .slot = slot});
  }
  for (const SampleMemory& sample : samples) {
    options_.pool->SetUse(sample.owner, kv::BlockUse::kActive);
  }
  return samples;
}

void Scheduler::Release(const Reservation& reservation) {
  options_.pool->Release(reservation.owner);
  seats_taken_ -= reservation.need.slots;
  CHECK_GE(seats_taken_, 0);
}

void Scheduler::Release(const SampleMemory& sample) {
  options_.pool->Release(sample.owner);
  --seats_taken_;
  CHECK_GE(seats_taken_, 0);
}

int64_t Scheduler::JitteredDelayMs() {
  return static_cast<int64_t>(static_cast<double>(options_.retry_delay_ms) *
                              (0.5 + options_.random->Uniform()));
}

}  // namespace baton::decode_worker
