#include "common/kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/base/random.h"
#include "common/testing/status_matchers.h"

namespace baton::kv {

class BlockPoolTestPeer {
 public:
  static void LoseFreeBlock(BlockPool* pool) { pool->free_blocks_.pop_back(); }
  static void FreeTwice(BlockPool* pool) {
    pool->free_blocks_.push_back(pool->free_blocks_.back());
  }
  static void LoseSlot(BlockPool* pool) { pool->free_slots_.pop_back(); }
  static void ForgetOwner(BlockPool* pool, OwnerId owner) {
    pool->owners_.erase(static_cast<int64_t>(owner));
  }
  static void Retag(BlockPool* pool, OwnerId owner, BlockUse use) {
    pool->owners_[static_cast<int64_t>(owner)].use = use;
  }
};

namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

TEST(BlockPoolTest, AcquiresAllOrNothing) {
  BlockPool pool(/*num_blocks=*/4, /*num_slots=*/1);
  ASSERT_OK_AND_ASSIGN(const auto held,
                       pool.Acquire(3, 1, BlockUse::kReservedIdle));
  EXPECT_EQ(held.blocks.size(), 3u);
  EXPECT_EQ(held.slots.size(), 1u);
  EXPECT_THAT(pool.Acquire(2, 0, BlockUse::kActive),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("wanted 2 blocks and 0 slots; 1 blocks")));
  EXPECT_THAT(pool.Acquire(1, 1, BlockUse::kActive),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(pool.counts().free, 1);
  pool.Release(held.owner);
  EXPECT_EQ(pool.counts().free, 4);
  EXPECT_EQ(pool.counts().slots_free, 1);
}

TEST(BlockPoolTest, RefusesWhatItCouldNeverHold) {
  BlockPool pool(4, 2);
  EXPECT_THAT(pool.Acquire(5, 0, BlockUse::kActive),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pool.Acquire(0, 3, BlockUse::kActive),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pool.Acquire(-1, 0, BlockUse::kActive),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(pool.Acquire(4, 2, BlockUse::kActive));
}

TEST(BlockPoolTest, SharedBlockReturnsWithItsLastOwner) {
  BlockPool pool(4, 2);
  ASSERT_OK_AND_ASSIGN(const auto held, pool.Acquire(3, 2, BlockUse::kActive));
  ASSERT_OK_AND_ASSIGN(const OwnerId split,
                       pool.Split(held.owner, {held.blocks[0]},
                                  {held.blocks[2]}, {held.slots[1]}));
  EXPECT_OK(pool.Audit());
  pool.Release(held.owner);
  EXPECT_EQ(pool.counts().free, 2) << "blocks 0 (shared) and 2 (moved) held";
  EXPECT_EQ(pool.counts().slots_free, 1);
  EXPECT_OK(pool.Audit());
  pool.Release(split);
  EXPECT_EQ(pool.counts().free, 4);
  EXPECT_OK(pool.Audit());
}

TEST(BlockPoolTest, SplitRefusesWhatTheOwnerDoesNotHold) {
  BlockPool pool(6, 3);
  ASSERT_OK_AND_ASSIGN(const auto a, pool.Acquire(2, 1, BlockUse::kActive));
  ASSERT_OK_AND_ASSIGN(const auto b, pool.Acquire(2, 1, BlockUse::kActive));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.Split(a.owner, {b.blocks[0]}, {}, {}), refused);
  EXPECT_THAT(pool.Split(a.owner, {}, {b.blocks[0]}, {}), refused);
  EXPECT_THAT(pool.Split(a.owner, {}, {}, {b.slots[0]}), refused);
  EXPECT_THAT(pool.Split(a.owner, {a.blocks[0]}, {a.blocks[0]}, {}), refused);
  EXPECT_THAT(pool.Split(a.owner, {}, {}, {a.slots[0], a.slots[0]}), refused);
  ASSERT_OK(pool.Split(a.owner, {a.blocks[0]}, {}, {}));
  EXPECT_THAT(pool.Split(a.owner, {}, {a.blocks[0]}, {}), refused)
      << "a shared block cannot be moved";
  EXPECT_OK(pool.Audit());
}

TEST(BlockPoolTest, CountsByUseAddUp) {
  BlockPool pool(8, 2);
  ASSERT_OK_AND_ASSIGN(const auto a,
                       pool.Acquire(2, 1, BlockUse::kReservedIdle));
  ASSERT_OK_AND_ASSIGN(const auto b, pool.Acquire(3, 1, BlockUse::kActive));
  EXPECT_EQ(pool.counts().reserved_idle, 2);
  EXPECT_EQ(pool.counts().active, 3);
  pool.SetUse(b.owner, BlockUse::kCached);
  EXPECT_EQ(pool.counts().active, 0);
  EXPECT_EQ(pool.counts().cached, 3);
  // Shared between a cached and an active owner: counts as active.
  ASSERT_OK_AND_ASSIGN(const OwnerId split,
                       pool.Split(b.owner, {b.blocks[0]}, {}, {}));
  pool.SetUse(split, BlockUse::kActive);
  EXPECT_EQ(pool.counts().active, 1);
  EXPECT_EQ(pool.counts().cached, 2);
  EXPECT_EQ(pool.counts().free, 3);
  pool.Release(split);
  EXPECT_EQ(pool.counts().cached, 3);
  pool.Release(a.owner);
  pool.Release(b.owner);
  EXPECT_EQ(pool.counts().free, 8);
  EXPECT_OK(pool.Audit());
}

TEST(BlockPoolDeathTest, DoubleReleaseIsABug) {
  BlockPool pool(2, 1);
  const auto held = pool.Acquire(1, 1, BlockUse::kActive).value();
  pool.Release(held.owner);
  EXPECT_DEATH(pool.Release(held.owner), "released twice");
}

TEST(BlockPoolTest, AuditNamesALostBlock) {
  BlockPool pool(4, 2);
  BlockPoolTestPeer::LoseFreeBlock(&pool);
  EXPECT_EQ(pool.orphaned(), 1);
  EXPECT_THAT(pool.Audit(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("block 0")));
}

TEST(BlockPoolTest, AuditNamesABlockHeldTwice) {
  BlockPool pool(4, 2);
  BlockPoolTestPeer::FreeTwice(&pool);
  EXPECT_THAT(pool.Audit(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("2 times in the free list")));
}

TEST(BlockPoolTest, AuditSeesALostSlotAndAForgottenOwner) {
  BlockPool pool(4, 2);
  BlockPoolTestPeer::LoseSlot(&pool);
  EXPECT_THAT(pool.Audit(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("slot 0")));
  BlockPool other(4, 2);
  ASSERT_OK_AND_ASSIGN(const auto held, other.Acquire(2, 1, BlockUse::kActive));
  BlockPoolTestPeer::Retag(&other, held.owner, BlockUse::kCached);
  EXPECT_THAT(other.Audit(), StatusIs(absl::StatusCode::kInternal));
  BlockPoolTestPeer::ForgetOwner(&other, held.owner);
  EXPECT_EQ(other.orphaned(), 2);
  EXPECT_THAT(other.Audit(), StatusIs(absl::StatusCode::kInternal));
}

// The shadow model of the property test: plain sets.
struct Shadow {
  std::vector<BlockId> blocks;
  std::vector<int32_t> slots;
};

TEST(BlockPoolTest, RandomOperationsConserveEveryBlockAndSlot) {
  constexpr int32_t kBlocks = 37;
  constexpr int32_t kSlots = 9;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const auto below = [&random](size_t n) {
      return static_cast<size_t>(random.Uint64() % n);
    };
    BlockPool pool(kBlocks, kSlots);
    std::map<OwnerId, Shadow> owners;
    const auto pick = [&] {
      auto it = owners.begin();
      std::advance(it, static_cast<int64_t>(below(owners.size())));
      return it;
    };
    for (int step = 0; step < 400; ++step) {
      const size_t action = below(4);
      if (action == 0 || owners.empty()) {
        const auto blocks = static_cast<int32_t>(below(12));
        const auto slots = static_cast<int32_t>(below(3));
        const auto held =
            pool.Acquire(blocks, slots, static_cast<BlockUse>(below(3)));
        if (held.ok()) {
          owners[held->owner] = {held->blocks, held->slots};
        } else {
          EXPECT_THAT(held, StatusIs(absl::StatusCode::kResourceExhausted));
        }
      } else if (action == 1) {
        const auto it = pick();
        pool.Release(it->first);
        owners.erase(it);
      } else if (action == 2) {
        pool.SetUse(pick()->first, static_cast<BlockUse>(below(3)));
      } else {
        const auto it = pick();
        std::vector<BlockId> shared, moved;
        std::vector<int32_t> moved_slots;
        for (const BlockId block : it->second.blocks) {
          const auto holders = std::count_if(
              owners.begin(), owners.end(), [block](const auto& owner) {
                return std::count(owner.second.blocks.begin(),
                                  owner.second.blocks.end(), block) > 0;
              });
          const size_t what = below(3);
          if (what == 0) shared.push_back(block);
          if (what == 1 && holders == 1) moved.push_back(block);
        }
        for (const int32_t slot : it->second.slots) {
          if (below(2) == 0) moved_slots.push_back(slot);
        }
        ASSERT_OK_AND_ASSIGN(const OwnerId split,
                             pool.Split(it->first, shared, moved, moved_slots));
        for (const BlockId block : moved) std::erase(it->second.blocks, block);
        for (const int32_t s : moved_slots) std::erase(it->second.slots, s);
        Shadow& target = owners[split];
        target.blocks = shared;
        target.blocks.insert(target.blocks.end(), moved.begin(), moved.end());
        target.slots = moved_slots;
      }
      ASSERT_OK(pool.Audit());
      ASSERT_EQ(pool.orphaned(), 0);
      std::set<BlockId> held_blocks;
      std::set<int32_t> held_slots;
      for (const auto& [id, owner] : owners) {
        held_blocks.insert(owner.blocks.begin(), owner.blocks.end());
        for (const int32_t slot : owner.slots) {
          ASSERT_TRUE(held_slots.insert(slot).second) << "slot held twice";
        }
      }
      const BlockCounts counts = pool.counts();
      ASSERT_EQ(counts.free + static_cast<int32_t>(held_blocks.size()),
                kBlocks);
      ASSERT_EQ(
          counts.free + counts.reserved_idle + counts.active + counts.cached,
          counts.total);
      ASSERT_EQ(counts.slots_free + static_cast<int32_t>(held_slots.size()),
                kSlots);
    }
    for (const auto& [id, owner] : owners) pool.Release(id);
    EXPECT_EQ(pool.counts().free, kBlocks);
    EXPECT_EQ(pool.counts().slots_free, kSlots);
  }
}

}  // namespace
}  // namespace baton::kv
