#include "common/kv/block_pool.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::kv {

namespace {

constexpr auto kReservedIdle = static_cast<size_t>(BlockUse::kReservedIdle);
constexpr auto kActive = static_cast<size_t>(BlockUse::kActive);
constexpr auto kCached = static_cast<size_t>(BlockUse::kCached);

size_t At(BlockId block) { return static_cast<size_t>(Index(block)); }

int32_t Owners(const std::array<int32_t, 3>& uses) {
  return std::accumulate(uses.begin(), uses.end(), 0);
}

// The use a block counts for.
size_t Busiest(const std::array<int32_t, 3>& uses) {
  if (uses[kActive] > 0) return kActive;
  return uses[kReservedIdle] > 0 ? kReservedIdle : kCached;
}

template <typename T>
bool Contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

template <typename T>
bool HasDuplicates(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return std::adjacent_find(values.begin(), values.end()) != values.end();
}

template <typename T>
void Erase(std::vector<T>* values, T value) {
  values->erase(std::find(values->begin(), values->end(), value));
}

}  // namespace

BlockPool::BlockPool(int32_t num_blocks, int32_t num_slots)
    : references_(static_cast<size_t>(num_blocks)), num_slots_(num_slots) {
  CHECK_GE(num_blocks, 0);
  CHECK_GE(num_slots, 0);
  // Popped from the back: low ids first.
  for (int32_t i = num_blocks - 1; i >= 0; --i) {
    free_blocks_.push_back(BlockId{i});
  }
  for (int32_t i = num_slots - 1; i >= 0; --i) free_slots_.push_back(i);
}

BlockPool::Owner& BlockPool::Find(OwnerId owner) {
  const auto it = owners_.find(static_cast<int64_t>(owner));
  CHECK(it != owners_.end())
      << "owner " << static_cast<int64_t>(owner)
      << " holds nothing: released twice, or never acquired";
  return it->second;
}

void BlockPool::AddReference(BlockId block, BlockUse use) {
  UseCounts& uses = references_[At(block)];
  if (Owners(uses) > 0) --blocks_by_use_[Busiest(uses)];
  ++uses[static_cast<size_t>(use)];
  ++blocks_by_use_[Busiest(uses)];
}

void BlockPool::DropReference(BlockId block, BlockUse use) {
  UseCounts& uses = references_[At(block)];
  CHECK(uses[static_cast<size_t>(use)] > 0) << "block " << Index(block);
  --blocks_by_use_[Busiest(uses)];
  --uses[static_cast<size_t>(use)];
  if (Owners(uses) > 0) ++blocks_by_use_[Busiest(uses)];
}

absl::StatusOr<BlockPool::Holding> BlockPool::Acquire(int32_t blocks,
                                                      int32_t slots,
                                                      BlockUse use) {
  const auto total = static_cast<int32_t>(references_.size());
  if (blocks < 0 || slots < 0 || blocks > total || slots > num_slots_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted ", blocks, " blocks and ", slots, " slots; the pool has ",
        total, " blocks and ", num_slots_, " slots in all"));
  }
  const auto free_blocks = static_cast<int32_t>(free_blocks_.size());
  const auto free_slots = static_cast<int32_t>(free_slots_.size());
  if (blocks > free_blocks || slots > free_slots) {
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted ", blocks, " blocks and ", slots, " slots; ",
                     free_blocks, " blocks and ", free_slots, " slots free"));
  }
  Holding holding;
  holding.owner = OwnerId{next_owner_++};
  for (int32_t i = 0; i < blocks; ++i) {
    holding.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
    AddReference(holding.blocks.back(), use);
  }
  for (int32_t i = 0; i < slots; ++i) {
    holding.slots.push_back(free_slots_.back());
    free_slots_.pop_back();
  }
  owners_[static_cast<int64_t>(holding.owner)] = {
      .blocks = holding.blocks, .slots = holding.slots, .use = use};
  return holding;
}

absl::StatusOr<OwnerId> BlockPool::Split(
    OwnerId from, const std::vector<BlockId>& shared,
    const std::vector<BlockId>& moved,
    const std::vector<int32_t>& moved_slots) {
  Owner& source = Find(from);
  std::vector<BlockId> blocks = shared;
  blocks.insert(blocks.end(), moved.begin(), moved.end());
  for (const BlockId block : blocks) {
    if (!Contains(source.blocks, block)) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", Index(block), " is not held by owner ",
                       static_cast<int64_t>(from)));
    }
  }
  for (const BlockId block : moved) {
    if (Owners(references_[At(block)]) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block ", Index(block), " is shared: it cannot be moved"));
    }
  }
  for (const int32_t slot : moved_slots) {
    if (!Contains(source.slots, slot)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "slot ", slot, " is not held by owner ", static_cast<int64_t>(from)));
    }
  }
  if (HasDuplicates(blocks) || HasDuplicates(moved_slots)) {
    return absl::InvalidArgumentError(
        "a block or slot is named twice in one split");
  }
  for (const BlockId block : shared) AddReference(block, source.use);
  for (const BlockId block : moved) Erase(&source.blocks, block);
  for (const int32_t slot : moved_slots) Erase(&source.slots, slot);
  const OwnerId owner{next_owner_++};
  Owner split{
      .blocks = std::move(blocks), .slots = moved_slots, .use = source.use};
  owners_[static_cast<int64_t>(owner)] = std::move(split);
  return owner;
}

void BlockPool::SetUse(OwnerId owner, BlockUse use) {
  Owner& holder = Find(owner);
  if (holder.use == use) return;
  for (const BlockId block : holder.blocks) {
    AddReference(block, use);
    DropReference(block, holder.use);
  }
  holder.use = use;
}

void BlockPool::Release(OwnerId owner) {
  const Owner& holder = Find(owner);
  // In reverse, so that an equal Acquire gets the same ids again.
  for (auto it = holder.blocks.rbegin(); it != holder.blocks.rend(); ++it) {
    DropReference(*it, holder.use);
    if (Owners(references_[At(*it)]) == 0) free_blocks_.push_back(*it);
  }
  free_slots_.insert(free_slots_.end(), holder.slots.rbegin(),
                     holder.slots.rend());
  owners_.erase(static_cast<int64_t>(owner));
}

BlockCounts BlockPool::counts() const {
  return {.total = static_cast<int32_t>(references_.size()),
          .free = static_cast<int32_t>(free_blocks_.size()),
          .reserved_idle = blocks_by_use_[kReservedIdle],
          .active = blocks_by_use_[kActive],
          .cached = blocks_by_use_[kCached],
          .slots_total = num_slots_,
          .slots_free = static_cast<int32_t>(free_slots_.size())};
}

absl::Status BlockPool::Audit() const {
  std::vector<UseCounts> held(references_.size());
  std::vector<int32_t> slot_holders(static_cast<size_t>(num_slots_));
  for (const auto& [id, owner] : owners_) {
    for (const BlockId block : owner.blocks) {
      ++held[At(block)][static_cast<size_t>(owner.use)];
    }
    for (const int32_t slot : owner.slots) {
      ++slot_holders[static_cast<size_t>(slot)];
    }
  }
  std::vector<int32_t> listed(references_.size());
  for (const BlockId block : free_blocks_) ++listed[At(block)];
  UseCounts by_use{};
  for (size_t i = 0; i < references_.size(); ++i) {
    const int32_t owners = Owners(held[i]);
    if (held[i] != references_[i]) {
      return absl::InternalError(absl::StrCat(
          "block ", i, " is held by ", owners, " owners, but the ledger has ",
          Owners(references_[i]), " references or another use"));
    }
    if (listed[i] != (owners == 0 ? 1 : 0)) {
      return absl::InternalError(absl::StrCat("block ", i, " has ", owners,
                                              " owners and is ", listed[i],
                                              " times in the free list"));
    }
    if (owners > 0) ++by_use[Busiest(held[i])];
  }
  if (by_use != blocks_by_use_) {
    return absl::InternalError("counts of blocks by use do not match owners");
  }
  for (const int32_t slot : free_slots_) {
    ++slot_holders[static_cast<size_t>(slot)];
  }
  for (size_t i = 0; i < slot_holders.size(); ++i) {
    if (slot_holders[i] != 1) {
      return absl::InternalError(absl::StrCat("slot ", i, " is held or free ",
                                              slot_holders[i],
                                              " times, expected once"));
    }
  }
  return absl::OkStatus();
}

int32_t BlockPool::orphaned() const {
  std::vector<bool> known(references_.size());
  for (const BlockId block : free_blocks_) known[At(block)] = true;
  for (const auto& [id, owner] : owners_) {
    for (const BlockId block : owner.blocks) known[At(block)] = true;
  }
  return static_cast<int32_t>(std::count(known.begin(), known.end(), false));
}

}  // namespace baton::kv
