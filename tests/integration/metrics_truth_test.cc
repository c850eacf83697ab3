// Metrics and health tell the truth: scraped counters equal what the clients
// saw, and a stuck step loop is not called serving.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/cli/load.h"
#include "common/rpc/server.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"
#include "tests/integration/health.h"

namespace baton::integration {
namespace {

double Sum(const Metrics& metrics, const std::string& prefix) {
  double sum = 0;
  for (const auto& [series, value] : metrics) {
    if (absl::StartsWith(series, prefix)) sum += value;
  }
  return sum;
}

TEST(Metrics, EqualWhatTheClientsSaw) {
  auto started = Cluster::Start({.prefill = 2});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  const auto load = cli::RunLoad({.address = cluster.address(),
                                  .streams = 4,
                                  .requests = 24,
                                  .prompt_tokens = 130,
                                  .output_tokens = 20});
  ASSERT_TRUE(load.ok()) << load.status().ToString();
  ASSERT_EQ(load->completed, 24);
  // Five more that go away before their first token. Their prompt counts from
  // the moment that a worker took it, which is when Started is sent.
  int64_t started_tokens = 0;
  v1::GenerateRequest slow;
  for (int i = 0; i < 2000; ++i) slow.mutable_token_ids()->add_ids(300 + i % 9);
  slow.mutable_sampling()->set_max_tokens(2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(cluster.client()
                  .Generate(slow, absl::Milliseconds(100),
                            [&](const v1::GenerateResponse& event) {
                              started_tokens += event.started().prompt_tokens();
                              EXPECT_FALSE(event.has_delta());
                              return true;
                            })
                  .code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_OK(cluster.WaitUntilIdle(absl::Seconds(5)));

  const auto router = cluster.Scrape("router-0");
  ASSERT_TRUE(router.ok());
  EXPECT_EQ(Sum(*router, "baton_requests_total"), 29);
  EXPECT_EQ(router->at("baton_requests_total{outcome=\"ok\"}"), 24);
  EXPECT_EQ(router->at("baton_time_to_first_token_seconds_count"), 24)
      << "only requests that had a first token";
  EXPECT_EQ(router->at("baton_request_duration_seconds_count"), 29);
  EXPECT_EQ(router->at("baton_generation_tokens_total"),
            static_cast<double>(load->output_tokens));
  EXPECT_EQ(load->output_tokens, 24 * 20);
  EXPECT_EQ(router->at("baton_inter_token_latency_seconds_count"), 24 * 19);
  EXPECT_EQ(router->at("baton_prompt_tokens_total"),
            static_cast<double>(load->prompt_tokens + started_tokens));
  double prefilled = 0;
  for (const char* worker : {"prefill-0", "prefill-1"}) {
    const double tokens =
        cluster.Value(worker, "baton_step_tokens_total{phase=\"prefill\"}");
    EXPECT_GT(tokens, 0) << worker << " got none of 24 requests";
    prefilled += tokens;
  }
  EXPECT_GE(prefilled, static_cast<double>(load->prompt_tokens));
  EXPECT_EQ(
      cluster.Value("decode-0", "baton_step_tokens_total{phase=\"decode\"}"),
      24 * 19);
  // Client-side and server-side mean TTFT agree: the server's clock starts when
  // the request arrives and ends when the first token leaves, so it is never
  // longer; a fifth is room for two RPC legs on cores that prefill keeps busy.
  double client_sum = 0;
  for (const double t : load->ttft) client_sum += t;
  const double server_sum = router->at("baton_time_to_first_token_seconds_sum");
  EXPECT_LE(server_sum, client_sum);
  EXPECT_GT(server_sum, 0.8 * client_sum);
}

TEST(Metrics, EveryDeclaredWorkerGaugeHasASample) {
  auto started = Cluster::Start({});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  for (const char* worker : {"prefill-0", "decode-0"}) {
    const auto metrics = cluster.Scrape(worker);
    ASSERT_TRUE(metrics.ok());
    for (const char* name :
         {"baton_blocks{state=\"free\"}", "baton_blocks{state=\"active\"}",
          "baton_blocks{state=\"reserved_idle\"}",
          "baton_blocks{state=\"cached\"}", "baton_blocks_orphaned"}) {
      EXPECT_EQ(metrics->count(name), 1U) << worker << " " << name;
    }
    EXPECT_EQ(metrics->at("baton_blocks{state=\"free\"}"), 512) << worker;
    for (const char* prefix :
         {"baton_sequences{", "baton_links{", "baton_device_memory_bytes{",
          "baton_compute_policy_info{", "baton_kernel_path_info{",
          "baton_handoff_bytes_total{", "baton_step_seconds"}) {
      bool found = false;
      for (const auto& [series, value] : *metrics) {
        found |= absl::StartsWith(series, prefix);
      }
      EXPECT_TRUE(found) << worker << " " << prefix;
    }
  }
}

TEST(Health, AStuckStepLoopStopsServingWithinThreeSeconds) {
  auto started = Cluster::Start({});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Cluster& cluster = **started;
  for (const char* worker : {"prefill-0", "decode-0"}) {
    EXPECT_EQ(Health(cluster.member(worker).grpc), HealthState::kServing);
    ASSERT_OK(cluster.Arm(worker, "worker.step_loop*1=sleep:6000"));
    const absl::Time stuck = Clock::Real()->Now();
    while (Health(cluster.member(worker).grpc) == HealthState::kServing &&
           Clock::Real()->Now() < stuck + absl::Seconds(6)) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    const absl::Duration took = Clock::Real()->Now() - stuck;
    EXPECT_LT(took, absl::Seconds(3)) << worker;
    std::printf("%s: NOT_SERVING after %.2f s\n", worker,
                absl::ToDoubleSeconds(took));
    // It recovers by itself.
    EXPECT_OK(cluster.WaitUntilServing(absl::Seconds(10)));
    EXPECT_EQ(Health(cluster.member(worker).grpc), HealthState::kServing);
  }
}

}  // namespace
}  // namespace baton::integration
