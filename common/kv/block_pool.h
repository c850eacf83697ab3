// Allocator and exact ledger of blocks and slots: every block has an owner,
// or is free. One thread (the step loop) owns it; the counts are published for
// other threads as a snapshot.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"

namespace baton::kv {

// Who holds blocks: one number per reservation or sequence, minted by the pool.
enum class OwnerId : int64_t {};

// What a block is held for (label `state` of baton_blocks).
enum class BlockUse : uint8_t {
  kReservedIdle,  // reserved, no row has arrived or been computed yet
  kActive,        // rows being received, computed or read
  kCached,        // finished, evictable
};
// A block shared by owners of different uses counts as the busiest of them
// (active, then reserved_idle, then cached), so the counts add up to `total`.

struct BlockCounts {
  int32_t total = 0;
  int32_t free = 0;
  int32_t reserved_idle = 0;
  int32_t active = 0;
  int32_t cached = 0;
  int32_t slots_total = 0;
  int32_t slots_free = 0;
};

// Not thread-safe.
class BlockPool final {
 public:
  BlockPool(int32_t num_blocks, int32_t num_slots);

  // A new owner holding `blocks` blocks and `slots` slots, or nothing at all.
  // ResourceExhausted (names wanted and free) when they are not free now;
  // InvalidArgument when the pool could never hold them.
  struct Holding {
    OwnerId owner{};
    std::vector<BlockId> blocks;
    std::vector<int32_t> slots;
  };
  absl::StatusOr<Holding> Acquire(int32_t blocks, int32_t slots, BlockUse use);

  // A further owner, of the same use, of blocks that `from` already holds
  // (shared full blocks of forked samples) and of a subset of its slots and
  // private blocks, which move. InvalidArgument, and nothing changes, when
  // `from` does not hold one of them, a moved block is shared, or one is named
  // twice.
  absl::StatusOr<OwnerId> Split(OwnerId from,
                                const std::vector<BlockId>& shared,
                                const std::vector<BlockId>& moved,
                                const std::vector<int32_t>& moved_slots);

  void SetUse(OwnerId owner, BlockUse use);
  // Gives back everything the owner holds; a shared block returns with its last
  // owner. CHECK-fails for an unknown owner: a double release is a bug.
  void Release(OwnerId owner);

  BlockCounts counts() const;
  // Recomputes the ledger from the owners and compares: Internal, naming the
  // first block that is lost or held twice. O(blocks); called each second.
  absl::Status Audit() const;
  // Blocks neither free nor held by an owner (0 unless there is a bug).
  int32_t orphaned() const;

 private:
  friend class BlockPoolTestPeer;  // breaks the ledger on purpose

  struct Owner {
    std::vector<BlockId> blocks;
    std::vector<int32_t> slots;
    BlockUse use = BlockUse::kReservedIdle;
  };
  // Owners per use of one block.
  using UseCounts = std::array<int32_t, 3>;

  Owner& Find(OwnerId owner);
  void AddReference(BlockId block, BlockUse use);
  void DropReference(BlockId block, BlockUse use);

  std::vector<UseCounts> references_;  // [num_blocks]
  std::array<int32_t, 3> blocks_by_use_{};
  std::vector<BlockId> free_blocks_;
  std::vector<int32_t> free_slots_;
  absl::flat_hash_map<int64_t, Owner> owners_;
  int32_t num_slots_;
  int64_t next_owner_ = 1;
};

}  // namespace baton::kv
