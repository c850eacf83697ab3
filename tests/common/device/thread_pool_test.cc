#include "common/device/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace baton::device {
namespace {

TEST(ThreadPoolTest, RunsEachIndexExactlyOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 1000}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, n = " << n);
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      pool.For(n, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i) {
          hits[static_cast<size_t>(i)].fetch_add(1);
        }
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, WritesOfAJobAreSeenByTheNext) {
  ThreadPool pool(4);
  std::vector<int64_t> values(257);
  std::iota(values.begin(), values.end(), 0);
  for (int round = 0; round < 2000; ++round) {
    // Plain, unsynchronised data: ThreadSanitizer proves the hand-over.
    pool.For(257, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[static_cast<size_t>(i)] += i;
      }
    });
  }
  for (int64_t i = 0; i < 257; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], i * 2001);
  }
}

TEST(ThreadPoolTest, OneThreadRunsInlineInOneChunk) {
  ThreadPool pool(1);
  const auto self = std::this_thread::get_id();
  int calls = 0;
  pool.For(100, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPoolTest, OtherThreadsTakeChunksWhileTheCallerIsBusy) {
  ThreadPool pool(2);
  // The chunk with index 0 ends only after another chunk has run, so a second
  // thread must take part, asleep or not.
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> others{0};
    pool.For(8, [&](int64_t begin, int64_t) {
      if (begin != 0) {
        others.fetch_add(1);
        return;
      }
      while (others.load() == 0) std::this_thread::yield();
    });
    EXPECT_EQ(others.load(), 7);
  }
}

TEST(ThreadPoolTest, StartsAndStopsWithoutWork) {
  for (int round = 0; round < 100; ++round) ThreadPool pool(3);
}

TEST(ThreadPoolTest, FewerThanOneThreadIsOne) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.num_threads(), 1);
}

}  // namespace
}  // namespace baton::device
