#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/log.h"
#include "common/testing/status_matchers.h"

namespace baton::metrics {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricSet, ExposesCountersGaugesAndHistograms) {
  MetricSet set;
  set.Counters("baton_x_total", "help x").Add({{"k", "v"}}).Increment(3);
  set.Gauge("baton_g", "help g").Set(7);
  set.Histogram("baton_h_seconds", "help h", TokenBuckets()).Observe(0.003);
  const std::string text = set.Expose();
  EXPECT_THAT(text, HasSubstr("baton_x_total{k=\"v\"} 3"));
  EXPECT_THAT(text, HasSubstr("# HELP baton_g help g"));
  EXPECT_THAT(text, HasSubstr("baton_h_seconds_bucket{le=\"0.002\"} 0"));
  EXPECT_THAT(text, HasSubstr("baton_h_seconds_bucket{le=\"0.004\"} 1"));
}

TEST(MetricSet, UpdatesRunBeforeTheScrape) {
  MetricSet set;
  auto& gauge = set.Gauge("baton_level", "help");
  double level = 1;
  set.OnScrape([&] { gauge.Set(level); });
  EXPECT_THAT(set.Expose(), HasSubstr("baton_level 1"));
  level = 2;
  EXPECT_THAT(set.Expose(), HasSubstr("baton_level 2"));
}

TEST(MetricSet, AScrapeUpdateEndsWithItsObject) {
  MetricSet set;
  auto& gauge = set.Gauge("baton_level", "help");
  int runs = 0;
  auto update = std::make_unique<ScrapeUpdate>(set, [&] { gauge.Set(++runs); });
  const ScrapeUpdate other(set, [] {});
  EXPECT_THAT(set.Expose(), HasSubstr("baton_level 1"));
  update = nullptr;
  EXPECT_THAT(set.Expose(), HasSubstr("baton_level 1"));
  EXPECT_EQ(runs, 1);
}

TEST(MetricSet, BugsAreCountedBySite) {
  static MetricSet* const set = new MetricSet;  // outlives the bug sink
  InstallBugCounter(set);
  ReportBug("metrics_test", "on purpose");
  EXPECT_THAT(set->Expose(),
              HasSubstr("baton_bug_total{site=\"metrics_test\"} 1"));
}

TEST(MetricsServer, BindsPortZeroAndRefusesATakenPort) {
  MetricSet set;
  ASSERT_OK_AND_ASSIGN(const auto server,
                       MetricsServer::Start("127.0.0.1:0", set));
  EXPECT_THAT(server->address(), Not(HasSubstr(":0")));
  EXPECT_THAT(
      MetricsServer::Start(server->address(), set),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server->address())));
}

}  // namespace
}  // namespace baton::metrics
