#include "tests/decode_worker/engine/decode_rig.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"

namespace baton::decode_worker {
namespace {

constexpr int32_t kEos = 1;

// Shared by all rigs of the process: immutable, and slow to load.
const checkpoint::Checkpoint& DemoCheckpoint() {
  static const auto* const loaded = [] {
    auto opened =
        checkpoint::Checkpoint::Open(testing::SourcePath("deploy/demo-model"));
    CHECK_OK(opened);
    return opened->release();
  }();
  return *loaded;
}

device::ThreadPool* Threads() {
  static auto* const pool = new device::ThreadPool(2);
  return pool;
}

}  // namespace

DecodeRig::DecodeRig(const DecodeRigOptions& options) : metrics_(&metric_set) {
  const checkpoint::Checkpoint& checkpoint = DemoCheckpoint();
  model::ModelOptions model_options;
  model_options.policy = *model::ComputePolicyFromName("exact");
  model_options.policy.index_topk = checkpoint.config().index_topk;
  model_options.format = *kv::StateFormatFromName(
      "f32", model::Model::GeometryOf(checkpoint.config()));
  model_options.max_step_spans = 64;
  model_options.max_step_tokens = 256;
  auto created = model::Model::Create(&checkpoint, model_options, Threads());
  CHECK_OK(created);
  model_ = *std::move(created);
  auto store =
      kv::KvStore::Create(model_options.format, options.blocks, options.slots);
  CHECK_OK(store);
  store_ = *std::move(store);
  pool_ = std::make_unique<kv::BlockPool>(options.blocks, options.slots);
  for (int32_t i = 0; i < options.blocks; ++i) store_->PoisonBlock(BlockId{i});
  engine_ =
      std::make_unique<Engine>(EngineOptions{.model = model_.get(),
                                             .store = store_.get(),
                                             .pool = pool_.get(),
                                             .receiver = &receiver,
                                             .vocabulary = &DemoVocabulary(),
                                             .metrics = &metrics_,
                                             .eos_token_ids = {kEos},
                                             .max_seats = options.seats,
                                             .clock = &clock,
                                             .random = &random_,
                                             .poison_free_pages = true});
}

std::unique_ptr<DecodeRig::Call> DecodeRig::Start(const Ask& ask) {
  StartRequest start;
  start.request = RequestId::Mint(&random_);
  start.handoff =
      ask.handoff.is_zero() ? HandoffId::Mint(&random_) : ask.handoff;
  start.prompt_ids = ask.prompt;
  start.prompt_hash = HashTokenIds(ask.prompt);
  start.sampling = ask.sampling;
  start.logprobs = ask.logprobs;
  start.deadline = clock.Now() + ask.deadline;
  CHECK_OK(PrepareStart({.vocab_size = model_->vocab_size()}, &start));
  auto output = std::make_shared<RequestOutput>(
      RequestOutputOptions{.samples = ask.sampling.n,
                           .logprobs = ask.logprobs,
                           .vocabulary = &DemoVocabulary(),
                           .clock = &clock});
  auto call = std::make_unique<Call>(Call{.handoff = start.handoff,
                                          .prompt = ask.prompt,
                                          .output = output,
                                          .got = Collected(ask.sampling.n)});
  engine_->Start(std::move(start), output);
  return call;
}

void DecodeRig::Prefill(const Call& call) {
  const kv::SequenceView sequence =
      receiver.live.at(call.handoff).expectation.sequence;
  std::vector<float> logits;
  const int64_t tokens = static_cast<int64_t>(call.prompt.size());
  for (int64_t first = 0; first < tokens; first += 256) {
    const int64_t count = std::min<int64_t>(256, tokens - first);
    const model::Span span{.sequence = sequence,
                           .first_position = first,
                           .tokens = absl::MakeConstSpan(call.prompt)
                                         .subspan(static_cast<size_t>(first),
                                                  static_cast<size_t>(count)),
                           .logits = model::LogitsWanted::kLast};
    const auto inputs = model_->Plan({&span, 1});
    CHECK_OK(inputs);
    CHECK_OK(model_->Run(*inputs, store_.get(), &logits));
  }
  receiver.Verify(call.handoff, logits);
}

void DecodeRig::RunSteps() {
  while (engine_->Iterate()) {
  }
}

std::unique_ptr<DecodeRig::Call> DecodeRig::Complete(const Ask& ask) {
  std::unique_ptr<Call> call = Start(ask);
  Prefill(*call);
  RunSteps();
  engine_->Iterate();  // takes kQuiet
  Read(call.get());
  return call;
}

void DecodeRig::ExpectEmpty() {
  engine_->Iterate();
  engine_->Audit();
  const kv::BlockCounts counts = pool_->counts();
  EXPECT_EQ(counts.free, counts.total);
  EXPECT_EQ(counts.slots_free, counts.slots_total);
  EXPECT_EQ(pool_->orphaned(), 0);
  EXPECT_OK(pool_->Audit());
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.reserved, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.quiescing, 0);
}

std::vector<int32_t> PromptOf(int64_t tokens, int32_t kind) {
  std::vector<int32_t> ids{0};  // begin of sequence
  for (int64_t i = 1; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(260 + (i * 37 + kind * 101) % 1500));
  }
  return ids;
}

}  // namespace baton::decode_worker
