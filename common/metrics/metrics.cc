#include "common/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"

namespace baton::metrics {
namespace {

// Runs the update functions when scraped and reports nothing itself. It is
// registered before the registry, so gauges are set when that is collected.
class Updater final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    MutexLock lock(&mu_);
    for (const auto& [id, update] : updates_) update();
    return {};
  }
  int64_t Add(std::function<void()> update) {
    MutexLock lock(&mu_);
    updates_[++last_id_] = std::move(update);
    return last_id_;
  }
  // Waits for a scrape that is running it.
  void Remove(int64_t id) {
    MutexLock lock(&mu_);
    updates_.erase(id);
  }
  void Clear() {
    MutexLock lock(&mu_);
    updates_.clear();
  }

 private:
  mutable Mutex mu_;
  int64_t last_id_ BATON_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::function<void()>> updates_ BATON_GUARDED_BY(mu_);
};

// Set once at start-up.
std::atomic<prometheus::Family<prometheus::Counter>*> g_bugs{nullptr};

void CountBug(absl::string_view site) {
  if (auto* family = g_bugs.load(std::memory_order_acquire)) {
    family->Add({{"site", std::string(site)}}).Increment();
  }
}

}  // namespace

const prometheus::Histogram::BucketBoundaries& RequestBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{
          0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   30,    60,   120, 300,  600};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& TokenBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{
          0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064,
          0.128,  0.256, 0.512, 1,     2.5,   5,     10};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& StepBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{
          0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
          0.05,   0.1,    0.2,    0.5,   1,     2,     5,    10};
  return *buckets;
}

const prometheus::Histogram::BucketBoundaries& CountBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{
          1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  return *buckets;
}

MetricSet::MetricSet()
    : registry_(std::make_shared<prometheus::Registry>(
          prometheus::Registry::InsertBehavior::Merge)),
      updater_(std::make_shared<Updater>()) {}

MetricSet::~MetricSet() {
  // A scrape may outlive the set, but not what the updates look at.
  static_cast<Updater*>(updater_.get())->Clear();
}

prometheus::Family<prometheus::Counter>& MetricSet::Counters(
    const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_);
}

prometheus::Family<prometheus::Gauge>& MetricSet::Gauges(
    const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
}

prometheus::Family<prometheus::Histogram>& MetricSet::Histograms(
    const std::string& name, const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(
      *registry_);
}

prometheus::Counter& MetricSet::Counter(const std::string& name,
                                        const std::string& help) {
  return Counters(name, help).Add({});
}

prometheus::Gauge& MetricSet::Gauge(const std::string& name,
                                    const std::string& help) {
  return Gauges(name, help).Add({});
}

prometheus::Histogram& MetricSet::Histogram(
    const std::string& name, const std::string& help,
    const prometheus::Histogram::BucketBoundaries& buckets) {
  return Histograms(name, help).Add({}, buckets);
}

void MetricSet::OnScrape(std::function<void()> update) {
  static_cast<Updater*>(updater_.get())->Add(std::move(update));
}

ScrapeUpdate::ScrapeUpdate(const MetricSet& set, std::function<void()> update)
    : updater_(set.updater()),
      id_(static_cast<Updater*>(updater_.get())->Add(std::move(update))) {}

ScrapeUpdate::~ScrapeUpdate() {
  static_cast<Updater*>(updater_.get())->Remove(id_);
}

std::string MetricSet::Expose() const {
  updater_->Collect();
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void InstallBugCounter(MetricSet* set) {
  g_bugs.store(&set->Counters("baton_bug_total",
                              "States that cannot happen and did, by place in "
                              "the code; any value above 0 is worth a report."),
               std::memory_order_release);
  SetBugSink(&CountBug);
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, const MetricSet& set) {
  auto server = std::unique_ptr<MetricsServer>(new MetricsServer);
  // prometheus-cpp reports failures by exception.
  try {
    server->exposer_ =
        std::make_unique<prometheus::Exposer>(address, /*num_threads=*/1);
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on '", address,
                     "' (expected a free host:port): ", e.what()));
  }
  server->updater_ = set.updater();
  server->registry_ = set.registry();
  server->exposer_->RegisterCollectable(server->updater_);
  server->exposer_->RegisterCollectable(server->registry_);
  const std::vector<int> ports = server->exposer_->GetListeningPorts();
  const size_t colon = address.rfind(':');
  server->address_ = absl::StrCat(address.substr(0, colon), ":",
                                  ports.empty() ? 0 : ports.front());
  return server;
}

}  // namespace baton::metrics
