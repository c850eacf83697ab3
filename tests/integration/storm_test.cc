// Many requests at once: cancelled at random times, and more than fit.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include "absl/strings/match.h"
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

v1::GenerateRequest RandomRequest(std::mt19937* random, int32_t max_prompt,
                                  int32_t max_output) {
  v1::GenerateRequest request;
  const int32_t prompt =
      1 + static_cast<int32_t>((*random)() % static_cast<uint32_t>(max_prompt));
  for (int32_t i = 0; i < prompt; ++i) {
    request.mutable_token_ids()->add_ids(
        300 + static_cast<int32_t>((*random)() % 1500));
  }
  request.mutable_sampling()->set_max_tokens(
      1 +
      static_cast<int32_t>((*random)() % static_cast<uint32_t>(max_output)));
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  request.set_return_token_ids(true);
  return request;
}

// Smallest bucket bound of a histogram that holds `q` of its samples.
double QuantileBound(const Metrics& metrics, const std::string& name,
                     double q) {
  std::map<double, double> buckets;
  for (const auto& [series, value] : metrics) {
    const std::string prefix = absl::StrCat(name, "_bucket{le=\"");
    if (!absl::StartsWith(series, prefix)) continue;
    const std::string bound = series.substr(
        prefix.size(), series.find('"', prefix.size()) - prefix.size());
    buckets[bound == "+Inf" ? 1e300 : std::stod(bound)] = value;
  }
  if (buckets.empty()) return -1;
  const double total = buckets.rbegin()->second;
  for (const auto& [bound, count] : buckets) {
    if (count >= q * total) return bound;
  }
  return -1;
}

TEST(CancelStorm, AThousandCancelsLeaveNothingBehind) {
  auto started = Cluster::Start({});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  constexpr int kRequests = 1000;
  std::atomic<int> next{0};
  std::atomic<int> finished{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> refused{0};
  Mutex mu;
  std::vector<std::string> wrong;
  std::vector<Thread> threads;
  for (uint32_t t = 0; t < 24; ++t) {
    threads.emplace_back("storm", [&, t] {
      std::mt19937 random(t);
      while (next.fetch_add(1) < kRequests) {
        const v1::GenerateRequest request = RandomRequest(&random, 600, 40);
        // The timeout cancels on the way in, in the queue, in prefill, during
        // the hand-off or while streaming, whichever it meets; some cancel on
        // an event instead.
        const bool on_event = random() % 4 == 0;
        const auto timeout =
            on_event ? absl::Seconds(60) : absl::Milliseconds(random() % 1500);
        int events = static_cast<int>(random() % 20);
        const absl::Status status = cluster.client().Generate(
            request, timeout, [&](const v1::GenerateResponse&) {
              return !on_event || events-- > 0;
            });
        switch (status.code()) {
          case absl::StatusCode::kOk:
            ++finished;
            break;
          case absl::StatusCode::kCancelled:
          case absl::StatusCode::kDeadlineExceeded:
            ++cancelled;
            break;
          case absl::StatusCode::kResourceExhausted:
            ++refused;
            break;
          default: {
            MutexLock lock(&mu);
            wrong.push_back(status.ToString());
          }
        }
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(wrong.empty()) << wrong.size() << " such as " << wrong.front();
  EXPECT_GT(cancelled.load(), kRequests / 4);
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
  for (const char* worker : {"prefill-0", "decode-0"}) {
    const auto metrics = cluster.Scrape(worker);
    ASSERT_TRUE(metrics.ok());
    const double p99 =
        QuantileBound(*metrics, "baton_cancel_release_steps", 0.99);
    std::printf("%s: blocks back within %.0f steps (p99)\n", worker, p99);
    EXPECT_GT(metrics->at("baton_cancel_release_steps_count"), kRequests / 20)
        << "hardly a cancel met a sequence that held blocks";
    EXPECT_LT(p99, 2);
  }
  std::printf("finished %d, cancelled %d, refused %d\n", finished.load(),
              cancelled.load(), refused.load());
  // And it still serves.
  std::mt19937 random(99);
  EXPECT_OK(cluster.client().Generate(
      RandomRequest(&random, 100, 10), absl::Seconds(30),
      [](const v1::GenerateResponse&) { return true; }));
}

TEST(Overload, OnlyRefusalsWithADelayAndEveryAcceptedRequestFinishes) {
  auto started =
      Cluster::Start({.prefill_args = {"--blocks", "64", "--slots", "16"},
                      .decode_args = {"--blocks", "64", "--slots", "16"}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  // 513 + 100 positions are 3 blocks: 16 slots hold 16 sequences of 48 blocks;
  // three times as many clients ask all the time.
  constexpr int kClients = 48;
  const absl::Time end = Clock::Real()->Now() + absl::Seconds(20);
  std::atomic<int> done{0};
  std::atomic<int> refused{0};
  Mutex mu;
  std::vector<std::string> wrong;
  std::vector<Thread> threads;
  for (uint32_t t = 0; t < kClients; ++t) {
    threads.emplace_back("client", [&, t] {
      std::mt19937 random(1000 + t);
      v1::GenerateRequest request = RandomRequest(&random, 1, 1);
      for (int i = 0; i < 512; ++i) {
        request.mutable_token_ids()->add_ids(
            300 + static_cast<int32_t>(random() % 1500));
      }
      request.mutable_sampling()->set_max_tokens(100);
      while (Clock::Real()->Now() < end) {
        bool accepted = false;
        int32_t tokens = 0;
        const absl::Status status = cluster.client().Generate(
            request, absl::Seconds(60), [&](const v1::GenerateResponse& event) {
              accepted |= event.has_started();
              if (event.has_delta()) tokens += event.delta().token_ids_size();
              return true;
            });
        const request::ErrorInfo info = request::InfoOf(status);
        if (status.ok() && tokens == 100) {
          ++done;
        } else if (status.code() == absl::StatusCode::kResourceExhausted &&
                   !accepted && info.retry_delay_ms > 0 &&
                   info.reason == request::ErrorReason::kOverloaded) {
          ++refused;
          absl::SleepFor(absl::Milliseconds(info.retry_delay_ms));
        } else {
          MutexLock lock(&mu);
          wrong.push_back(absl::StrCat(
              status.ToString(), " accepted=", accepted, " tokens=", tokens));
        }
      }
    });
  }
  threads.clear();
  std::printf("finished %d, refused %d\n", done.load(), refused.load());
  EXPECT_TRUE(wrong.empty()) << wrong.size() << " such as " << wrong.front();
  EXPECT_GT(done.load(), 20);
  EXPECT_GT(refused.load(), 0) << "the load was no overload";
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster.Bugs(), 0);
}

}  // namespace
}  // namespace baton::integration
