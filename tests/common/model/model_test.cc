#include "common/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "common/testing/status_matchers.h"
#include "tests/numeric/oracle_support.h"

namespace baton::model {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

class ModelCreateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(checkpoint_, checkpoint::Checkpoint::Open(
                                          numeric::CheckpointDir("random")));
    ASSERT_OK_AND_ASSIGN(options_.format,
                         kv::StateFormatFromName(
                             "f32", Model::GeometryOf(checkpoint_->config())));
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  device::ThreadPool pool_{1};
  ModelOptions options_;
};

TEST_F(ModelCreateTest, TakesDefaultsFromTheCheckpoint) {
  ASSERT_OK_AND_ASSIGN(const auto model,
                       Model::Create(checkpoint_.get(), options_, &pool_));
  EXPECT_EQ(model->max_positions(), 4096);
  EXPECT_EQ(model->policy().index_topk, 8);
  EXPECT_EQ(model->vocab_size(), 512);
}

TEST_F(ModelCreateTest, CountsWeightBytes) {
  ASSERT_OK_AND_ASSIGN(const auto model,
                       Model::Create(checkpoint_.get(), options_, &pool_));
  // Every tensor once, the hash tables of int64 excepted.
  int64_t tables = 0;
  for (const auto& layer : checkpoint_->weights().layers) {
    tables += static_cast<int64_t>(layer.ffn.tid2eid.size()) * 8;
  }
  EXPECT_EQ(model->weight_bytes() + tables, checkpoint_->tensor_bytes());
  // A step reads 2 of 8 experts of 3 x 32 x 128 bf16 in 5 layers, and one of
  // 512 rows of the embedding.
  EXPECT_EQ(model->weight_bytes() - model->decode_weight_bytes(),
            5 * 6 * 3 * 32 * 128 * 2 + 511 * 128 * 2);
}

TEST_F(ModelCreateTest, RefusesAFormatOfAnotherGeometry) {
  options_.format.geometry.ratios[0] = 4;
  EXPECT_THAT(Model::Create(checkpoint_.get(), options_, &pool_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("does not fit the checkpoint")));
}

TEST_F(ModelCreateTest, RefusesMorePositionsThanTheCheckpointHas) {
  options_.max_positions = 4097;
  EXPECT_THAT(Model::Create(checkpoint_.get(), options_, &pool_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the checkpoint has 4096")));
}

TEST_F(ModelCreateTest, RefusesAnEmptyStep) {
  options_.max_step_tokens = 0;
  EXPECT_THAT(Model::Create(checkpoint_.get(), options_, &pool_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ModelRunTest, ALargerRingGivesTheSameLogits) {
  ASSERT_OK_AND_ASSIGN(
      const auto checkpoint,
      checkpoint::Checkpoint::Open(numeric::CheckpointDir("random")));
  device::ThreadPool pool(2);
  const std::vector<int32_t> tokens(300, 7);
  std::vector<std::vector<float>> logits(2);
  for (const int32_t room : {0, 9}) {
    ModelOptions options;
    kv::StateGeometry geometry = Model::GeometryOf(checkpoint->config());
    geometry.window_capacity += room;
    ASSERT_OK_AND_ASSIGN(options.format,
                         kv::StateFormatFromName("f32", geometry));
    ASSERT_OK_AND_ASSIGN(const auto model,
                         Model::Create(checkpoint.get(), options, &pool));
    ASSERT_OK_AND_ASSIGN(const auto store,
                         kv::KvStore::Create(options.format, 2, 1));
    const std::vector<BlockId> blocks = {BlockId{1}, BlockId{0}};
    for (size_t begin = 0; begin < 300; begin += 100) {
      const Span span = {
          .sequence = {blocks, 0},
          .first_position = static_cast<int64_t>(begin),
          .tokens = absl::MakeConstSpan(tokens).subspan(begin, 100),
          .logits = LogitsWanted::kLast};
      ASSERT_OK_AND_ASSIGN(const auto inputs, model->Plan({&span, 1}));
      ASSERT_OK(model->Run(inputs, store.get(), &logits[room == 0 ? 0 : 1]));
    }
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(ModelRunTest, AnEmptyStepDoesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto rig,
                       numeric::Rig::Create({.checkpoint = "random"}));
  ASSERT_OK_AND_ASSIGN(const auto inputs, rig->model().Plan({}));
  std::vector<float> logits = {1.0f};
  EXPECT_OK(rig->model().Run(inputs, &rig->store(), &logits));
  EXPECT_TRUE(logits.empty());
}

// A stale or damaged row that a query reads must not become text.
TEST(ModelRunTest, NanInCachedStateIsInternal) {
  ASSERT_OK_AND_ASSIGN(const auto rig,
                       numeric::Rig::Create({.checkpoint = "random"}));
  auto sequence = rig->NewSequence(300);
  const std::vector<int32_t> tokens(200, 3);
  ASSERT_OK(rig->Feed(&sequence, tokens, 200, LogitsWanted::kLast));
  rig->store().PoisonSlot(sequence.state.slot);
  EXPECT_THAT(rig->Feed(&sequence, {tokens.data(), 1}, 1, LogitsWanted::kLast),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("position 200 of span 0")));
}

}  // namespace
}  // namespace baton::model
