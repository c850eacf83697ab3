#include "tests/prefill_worker/engine/engine_fixture.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/testing/paths.h"

namespace baton::prefill_worker {

using handoff::SenderEventKind;

absl::Status FakeSender::Start(const handoff::SendRequest& request) {
  MutexLock lock(&mu_);
  calls_.push_back(absl::StrCat("start ", request.attempt));
  if (start_status_.ok()) {
    attempt_ = request.attempt;
  }
  return start_status_;
}

void FakeSender::RowsComplete(HandoffId, int64_t processed) {
  MutexLock lock(&mu_);
  calls_.push_back(absl::StrCat("rows ", processed));
}

void FakeSender::Seal(HandoffId handoff, handoff::SealRequest seal) {
  {
    MutexLock lock(&mu_);
    calls_.push_back("seal");
    seal_ = std::move(seal);
    if (automatic_) {
      events_.push_back({SenderEventKind::kCommitted, handoff, attempt_, {}});
      events_.push_back({SenderEventKind::kQuiet, handoff, attempt_, {}});
    }
  }
  if (automatic_) on_event_();
}

void FakeSender::Cancel(HandoffId handoff, absl::string_view) {
  {
    MutexLock lock(&mu_);
    calls_.push_back("cancel");
    if (automatic_) {
      events_.push_back({SenderEventKind::kQuiet, handoff, attempt_, {}});
    }
  }
  if (automatic_) on_event_();
}

std::vector<handoff::SenderEvent> FakeSender::TakeEvents() {
  MutexLock lock(&mu_);
  return std::exchange(events_, {});
}

void FakeSender::Push(SenderEventKind kind, HandoffId handoff, Attempt attempt,
                      absl::Status status) {
  MutexLock lock(&mu_);
  events_.push_back({kind, handoff, attempt, std::move(status)});
}

std::vector<std::string> FakeSender::calls() const {
  MutexLock lock(&mu_);
  return calls_;
}

std::vector<float> FakeSender::logits() const {
  MutexLock lock(&mu_);
  return seal_.last_logits;
}

Sha256Digest FakeSender::prompt_hash() const {
  MutexLock lock(&mu_);
  return seal_.prompt_hash;
}

void RecordingObserver::OnProgress(int32_t processed) {
  log.push_back(absl::StrCat("progress ", processed));
}

void RecordingObserver::OnVerdict(bool committed) {
  log.push_back(absl::StrCat("verdict ", committed));
}

void RecordingObserver::OnFinished(const absl::Status& end) {
  EXPECT_FALSE(status.has_value()) << "finished twice";
  status = end;
  log.push_back(
      absl::StrCat("finished ", absl::StatusCodeToString(end.code())));
}

SharedModel& SharedModel::Get() {
  static SharedModel& shared = *new SharedModel;
  return shared;
}

SharedModel::SharedModel() {
  auto checkpoint =
      checkpoint::Checkpoint::Open(testing::SourcePath("deploy/demo-model"));
  CHECK_OK(checkpoint);
  checkpoint_ = *std::move(checkpoint);
  threads_ = std::make_unique<device::ThreadPool>(2);
  auto format = kv::StateFormatFromName(
      "f32", model::Model::GeometryOf(checkpoint_->config()));
  CHECK_OK(format);
  format_ = *std::move(format);
  model::ModelOptions options{.format = format_};
  options.policy.index_topk = checkpoint_->config().index_topk;
  auto model = model::Model::Create(checkpoint_.get(), options, threads_.get());
  CHECK_OK(model);
  model_ = *std::move(model);
}

void EngineTest::Build(EngineOptions options) {
  SetLogLevel(LogLevel::kError);
  SharedModel& shared = SharedModel::Get();
  auto store = kv::KvStore::Create(shared.format(), kBlocks, kSlots);
  CHECK_OK(store);
  engine_ = nullptr;
  store_ = *std::move(store);
  pool_ = std::make_unique<kv::BlockPool>(kBlocks, kSlots);
  metric_set_ = std::make_unique<metrics::MetricSet>();
  metrics_ = std::make_unique<PrefillMetrics>(metric_set_.get());
  sender_ = std::make_unique<FakeSender>();
  options.model_digest = shared.checkpoint().digest();
  options.poison_free_pages = true;
  engine_ = std::make_unique<Engine>(
      options, EngineDependencies{.model = shared.model(),
                                  .store = store_.get(),
                                  .pool = pool_.get(),
                                  .sender = sender_.get(),
                                  .metrics = metrics_.get(),
                                  .clock = &clock_,
                                  .random = &random_,
                                  .on_admitted = [this](HandoffId id) {
                                    admitted_.push_back(id);
                                  }});
}

PromptRequest EngineTest::Request(uint64_t n, int32_t tokens, Attempt attempt) {
  PromptRequest request;
  request.request = {.hi = 2, .lo = n};
  request.handoff = Handoff(n);
  request.attempt = attempt;
  for (int32_t i = 0; i < tokens; ++i) {
    request.prompt_ids.push_back(
        static_cast<int32_t>((7 * i + 13 * n + 5) % 1900));
  }
  request.prompt_hash = HashTokenIds(request.prompt_ids);
  request.model_digest = SharedModel::Get().checkpoint().digest();
  request.deadline = clock_.Now() + absl::Minutes(1);
  return request;
}

std::shared_ptr<RecordingObserver> EngineTest::Admit(PromptRequest request) {
  auto observer = std::make_shared<RecordingObserver>();
  engine_->Admit(std::move(request), observer);
  return observer;
}

void EngineTest::RunSteps() {
  for (int i = 0; engine_->Iterate(); ++i) {
    ASSERT_LT(i, 10'000) << "the engine never comes to rest";
  }
}

void EngineTest::Deliver(SenderEventKind kind, uint64_t n, Attempt attempt,
                         absl::Status status) {
  sender_->Push(kind, Handoff(n), attempt, std::move(status));
  engine_->Iterate();
}

void EngineTest::ExpectAllFree() { ExpectHeld(0, 0); }

void EngineTest::ExpectHeld(int32_t blocks, int32_t slots) {
  EXPECT_OK(pool_->Audit());
  EXPECT_EQ(pool_->orphaned(), 0);
  const kv::BlockCounts counts = pool_->counts();
  EXPECT_EQ(counts.total - counts.free, blocks);
  EXPECT_EQ(counts.slots_total - counts.slots_free, slots);
  const EngineLoad load = engine_->load();
  EXPECT_EQ(load.counts.free, counts.free);
  EXPECT_EQ(load.sequences, slots);
}

int64_t EngineTest::TokensProcessed() const {
  const std::string text = metric_set_->Expose();
  const std::string name = "baton_step_tokens_total{phase=\"prefill\"} ";
  const size_t at = text.find(name);
  CHECK(at != std::string::npos) << text;
  double value = -1;
  CHECK(absl::SimpleAtod(
      text.substr(at + name.size(), text.find('\n', at) - at - name.size()),
      &value));
  return static_cast<int64_t>(value);
}

}  // namespace baton::prefill_worker
