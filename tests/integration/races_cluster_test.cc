// Races that need real processes: circular reservation (hazards P9), and a
// lease that ends before its prefill does (P11) as the client sees it.

#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/request/request.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"

namespace baton::integration {
namespace {

// Pools so small that a request needs most of one on each side, and two routers
// that know nothing of each other.
TEST(CircularReservation, SixtyRequestsFromTwoRoutersAllFinish) {
  const std::vector<std::string> small = {"--blocks", "3", "--slots", "3"};
  auto started = Cluster::Start({.routers = 2,
                                 .prefill = 2,
                                 .decode = 2,
                                 .prefill_args = small,
                                 .decode_args = small});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  constexpr int kRequests = 60;
  constexpr int32_t kPrompt = 257;  // two blocks of three, at both ends
  constexpr int32_t kOutput = 8;
  const absl::Time begin = Clock::Real()->Now();
  const absl::Time end = begin + absl::Seconds(60);
  std::atomic<int> finished{0};
  std::atomic<int> refused{0};
  Mutex mu;
  std::vector<std::string> wrong;
  std::vector<Thread> clients;
  for (int32_t c = 0; c < kRequests; ++c) {
    clients.emplace_back("client", [&, c] {
      v1::GenerateRequest request;
      for (int32_t i = 0; i < kPrompt; ++i) {
        request.mutable_token_ids()->add_ids(300 + (i * 7 + c * 131) % 1500);
      }
      request.mutable_sampling()->set_temperature(0);
      request.mutable_sampling()->set_max_tokens(kOutput);
      request.mutable_sampling()->set_ignore_eos(true);
      request.set_return_token_ids(true);
      // Refused clients come back, as told, until they are served.
      while (Clock::Real()->Now() < end) {
        bool accepted = false;
        int32_t tokens = 0;
        const absl::Status status = cluster.client(c % 2).Generate(
            request, end - Clock::Real()->Now(),
            [&](const v1::GenerateResponse& event) {
              accepted |= event.has_started();
              tokens += event.delta().token_ids_size();
              return true;
            });
        const request::ErrorInfo info = request::InfoOf(status);
        if (status.ok() && tokens == kOutput) {
          ++finished;
          return;
        }
        if (status.code() != absl::StatusCode::kResourceExhausted || accepted ||
            info.retry_delay_ms <= 0) {
          MutexLock lock(&mu);
          wrong.push_back(absl::StrCat(
              status.ToString(), " accepted=", accepted, " tokens=", tokens));
          return;
        }
        ++refused;
        absl::SleepFor(absl::Milliseconds(info.retry_delay_ms));
      }
    });
  }
  clients.clear();
  std::printf("finished %d, refused and back %d times, %s\n", finished.load(),
              refused.load(),
              absl::FormatDuration(Clock::Real()->Now() - begin).c_str());
  EXPECT_TRUE(wrong.empty()) << wrong.size() << " such as " << wrong.front();
  EXPECT_EQ(finished.load(), kRequests);
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

// The client's deadline is far: the end of a lease is the cluster's affair, and
// the request is served by the next attempt.
TEST(EndOfALease, CostsTheClientTimeAndNothingElse) {
  auto started = Cluster::Start({.decode_args = {"--lease", "1"}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  v1::GenerateRequest request;
  for (int32_t i = 0; i < 100; ++i) {
    request.mutable_token_ids()->add_ids(300 + i * 7);
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_ignore_eos(true);
  std::string texts[2];
  for (const bool held : {false, true}) {
    // Longer than the lease, shorter than the router's patience.
    if (held) {
      ASSERT_OK(cluster.Arm("prefill-0", "prefill.before_step*1=sleep:3000"));
    }
    EXPECT_OK(cluster.client().Generate(request, absl::Seconds(40),
                                        [&](const v1::GenerateResponse& event) {
                                          texts[held] += event.delta().text();
                                          return true;
                                        }));
  }
  EXPECT_FALSE(texts[0].empty());
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(
      cluster.Value("router-0", "baton_retries_total{reason=\"decode_lost\"}"),
      1);
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

}  // namespace
}  // namespace baton::integration
