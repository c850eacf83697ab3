// Prometheus metrics of one process (design.md 9) and their HTTP endpoint.
// Each room declares its metrics in its metrics/ folder and resolves label sets
// at start-up, never on the token path.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::metrics {

using Labels = prometheus::Labels;

// Shared bucket sets, one per kind of latency, in seconds.
const prometheus::Histogram::BucketBoundaries& RequestBuckets();  // 1 ms-10 min
const prometheus::Histogram::BucketBoundaries& TokenBuckets();    // 0.5 ms-10 s
const prometheus::Histogram::BucketBoundaries& StepBuckets();     // 0.1 ms-10 s
const prometheus::Histogram::BucketBoundaries& CountBuckets();    // 1 .. 4096

// Thread-safe. Metric references stay valid as long as the set.
class MetricSet final {
 public:
  MetricSet();
  ~MetricSet();

  // Families; the same name gives the same family. `help` says what a reader
  // should do with the number.
  prometheus::Family<prometheus::Counter>& Counters(const std::string& name,
                                                    const std::string& help);
  prometheus::Family<prometheus::Gauge>& Gauges(const std::string& name,
                                                const std::string& help);
  prometheus::Family<prometheus::Histogram>& Histograms(
      const std::string& name, const std::string& help);

  // One member without labels.
  prometheus::Counter& Counter(const std::string& name,
                               const std::string& help);
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help);
  prometheus::Histogram& Histogram(
      const std::string& name, const std::string& help,
      const prometheus::Histogram::BucketBoundaries& buckets);

  // Runs before each scrape, to set gauges from snapshots. Updates run one at
  // a time and must not block. For as long as the set; see ScrapeUpdate for
  // what looks at something that ends earlier.
  void OnScrape(std::function<void()> update);

  // Text exposition, as a scrape sees it.
  std::string Expose() const;

  const std::shared_ptr<prometheus::Registry>& registry() const {
    return registry_;
  }
  const std::shared_ptr<prometheus::Collectable>& updater() const {
    return updater_;
  }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<prometheus::Collectable> updater_;
};

// An update of OnScrape that ends with this object: after the destructor it
// neither runs nor starts. Thread-safe; not destroyed by an update.
class ScrapeUpdate final {
 public:
  ScrapeUpdate(const MetricSet& set, std::function<void()> update);
  ~ScrapeUpdate();
  ScrapeUpdate(const ScrapeUpdate&) = delete;
  ScrapeUpdate& operator=(const ScrapeUpdate&) = delete;

 private:
  const std::shared_ptr<prometheus::Collectable> updater_;
  const int64_t id_;
};

// Counts ReportBug of this process into baton_bug_total{site}. `set` outlives
// the process's use of ReportBug; call once, from main.
void InstallBugCounter(MetricSet* set);

// Serves /metrics over HTTP.
class MetricsServer final {
 public:
  // UNAVAILABLE when the address (host:port, port 0 allowed) cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, const MetricSet& set);
  // host:port with the real port.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
  std::shared_ptr<prometheus::Collectable> updater_;
  std::shared_ptr<prometheus::Collectable> registry_;
};

}  // namespace baton::metrics
