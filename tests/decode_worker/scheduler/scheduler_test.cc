#include "decode_worker/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/request/request.h"
#include "common/testing/status_matchers.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;
using testing::StatusIs;

class SchedulerTest : public ::testing::Test {
 protected:
  void Make(int32_t blocks, int32_t slots, int32_t seats,
            int64_t max_positions = 4096) {
    pool_ = std::make_unique<kv::BlockPool>(blocks, slots);
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerOptions{.pool = pool_.get(),
                         .max_seats = seats,
                         .max_positions = max_positions,
                         .random = &random_});
  }
  void ExpectEmpty() {
    EXPECT_EQ(pool_->counts().free, pool_->counts().total);
    EXPECT_EQ(pool_->counts().slots_free, pool_->counts().slots_total);
    EXPECT_EQ(scheduler_->seats_taken(), 0);
    EXPECT_OK(pool_->Audit());
  }

  SeededRandom random_{1};
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST(MemoryNeedTest, CountsSharedPromptBlocksOnceAndTheRestPerSample) {
  struct Case {
    int64_t prompt;
    int32_t max_tokens;
    int32_t samples;
    int32_t table;
    int32_t shared;
    int32_t total;
  };
  for (const Case& c : {
           Case{1, 1, 1, 1, 0, 1},      // the shortest request
           Case{1, 1, 3, 1, 0, 3},      //
           Case{255, 1, 2, 1, 0, 2},    // nothing full to share
           Case{255, 2, 2, 1, 0, 2},    // positions 256: still one block
           Case{255, 3, 2, 2, 0, 4},    //
           Case{256, 1, 4, 1, 1, 1},    // no sample ever writes
           Case{256, 2, 4, 2, 1, 5},    // one private block each
           Case{257, 1, 4, 2, 1, 5},    // the partly filled block is private
           Case{257, 256, 4, 2, 1, 5},  // positions 512
           Case{257, 257, 4, 3, 1, 9},  // positions 513
           Case{512, 1, 64, 2, 2, 2},
       }) {
    const MemoryNeed need = NeedOf(c.prompt, c.max_tokens, c.samples);
    EXPECT_EQ(need.table_blocks, c.table) << c.prompt << "+" << c.max_tokens;
    EXPECT_EQ(need.shared_blocks, c.shared) << c.prompt << "+" << c.max_tokens;
    EXPECT_EQ(need.total_blocks, c.total) << c.prompt << "+" << c.max_tokens;
    EXPECT_EQ(need.slots, c.samples);
    EXPECT_EQ(need.positions, c.prompt + c.max_tokens - 1);
  }
}

TEST_F(SchedulerTest, RefusesForGoodWhatNeverFits) {
  Make(/*blocks=*/4, /*slots=*/3, /*seats=*/2, /*max_positions=*/2048);
  const absl::Status context = scheduler_->Reserve(2000, 50, 1).status();
  EXPECT_THAT(context, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(request::InfoOf(context).reason, ErrorReason::kContextExceeded);
  for (const auto& [prompt, max_tokens, n] :
       {std::tuple{int64_t{1024}, 2, 1},  // 5 blocks of 4
        std::tuple{int64_t{257}, 1, 4},   // 1 + 4 blocks
        std::tuple{int64_t{1}, 1, 3}}) {  // 3 seats of 2
    const absl::Status status =
        scheduler_->Reserve(prompt, max_tokens, n).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kNeverFits);
  }
  ExpectEmpty();
}

TEST_F(SchedulerTest, FitsExactlyAtTheEdges) {
  Make(/*blocks=*/4, /*slots=*/2, /*seats=*/2, /*max_positions=*/1024);
  ASSERT_OK_AND_ASSIGN(const Reservation all, scheduler_->Reserve(1023, 2, 1));
  EXPECT_EQ(all.blocks.size(), 4u);
  scheduler_->Release(all);
  EXPECT_THAT(scheduler_->Reserve(1023, 3, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ExpectEmpty();
}

TEST_F(SchedulerTest, RefusesForNowWithAJitteredDelayAndHoldsNothing) {
  Make(/*blocks=*/4, /*slots=*/4, /*seats=*/4);
  ASSERT_OK_AND_ASSIGN(const Reservation first, scheduler_->Reserve(600, 1, 1));
  std::set<int64_t> delays;
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = scheduler_->Reserve(300, 1, 1).status();
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kOverloaded);
    const int64_t delay = request::InfoOf(status).retry_delay_ms;
    EXPECT_GE(delay, 50);
    EXPECT_LE(delay, 150);
    delays.insert(delay);
  }
  EXPECT_GT(delays.size(), 5u);
  EXPECT_EQ(pool_->counts().free, 1);
  // Seats and slots count as well as blocks.
  EXPECT_THAT(scheduler_->Reserve(1, 1, 4),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(scheduler_->seats_taken(), 1);
  scheduler_->Release(first);
  ExpectEmpty();
}

TEST_F(SchedulerTest, ActivatedSamplesShareFullBlocksAndReturnThemLast) {
  Make(/*blocks=*/9, /*slots=*/4, /*seats=*/4);
  ASSERT_OK_AND_ASSIGN(const Reservation reservation,
                       scheduler_->Reserve(257, 257, 4));
  EXPECT_EQ(pool_->counts().reserved_idle, 9);
  const std::vector<SampleMemory> samples = scheduler_->Activate(reservation);
  ASSERT_EQ(samples.size(), 4u);
  std::set<BlockId> all;
  std::set<int32_t> slots;
  for (const SampleMemory& sample : samples) {
    ASSERT_EQ(sample.blocks.size(), 3u);
    EXPECT_EQ(sample.blocks[0], samples[0].blocks[0]);
    all.insert(sample.blocks.begin(), sample.blocks.end());
    slots.insert(sample.slot);
  }
  EXPECT_EQ(all.size(), 9u);  // 1 shared + 4 x 2 private, none twice
  EXPECT_EQ(slots.size(), 4u);
  EXPECT_EQ(pool_->counts().active, 9);
  int32_t released = 0;
  for (const SampleMemory& sample : samples) {
    scheduler_->Release(sample);
    ++released;
    EXPECT_EQ(pool_->counts().free, released == 4 ? 9 : 2 * released);
    EXPECT_OK(pool_->Audit());
  }
  ExpectEmpty();
}

TEST_F(SchedulerTest, KeepsTheLedgerThroughRandomOperations) {
  Make(/*blocks=*/16, /*slots=*/8, /*seats=*/8);
  std::vector<Reservation> reserved;
  std::vector<SampleMemory> active;
  SeededRandom random(7);
  const auto pick = [&random](uint64_t n) {
    return static_cast<size_t>(random.Uint64() % n);
  };
  for (int i = 0; i < 3000; ++i) {
    const size_t what = pick(4);
    if (what == 0) {
      absl::StatusOr<Reservation> r =
          scheduler_->Reserve(1 + static_cast<int64_t>(pick(900)),
                              1 + static_cast<int32_t>(pick(300)),
                              1 + static_cast<int32_t>(pick(4)));
      if (r.ok()) reserved.push_back(*std::move(r));
    } else if (what == 1 && !reserved.empty()) {
      const size_t at = pick(reserved.size());
      for (SampleMemory& s : scheduler_->Activate(reserved[at])) {
        active.push_back(std::move(s));
      }
      reserved.erase(reserved.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (what == 2 && !reserved.empty()) {
      scheduler_->Release(reserved.back());
      reserved.pop_back();
    } else if (what == 3 && !active.empty()) {
      const size_t at = pick(active.size());
      scheduler_->Release(active[at]);
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_OK(pool_->Audit());
    ASSERT_EQ(pool_->orphaned(), 0);
  }
  for (const Reservation& r : reserved) scheduler_->Release(r);
  for (const SampleMemory& s : active) scheduler_->Release(s);
  ExpectEmpty();
}

}  // namespace
}  // namespace baton::decode_worker
