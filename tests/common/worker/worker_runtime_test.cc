#include "common/worker/worker_runtime.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"

namespace baton::worker {
namespace {

using baton::testing::SourcePath;
using baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

WorkerOptions Options() {
  WorkerOptions options;
  options.name = "w";
  options.model = SourcePath("deploy/demo-model");
  options.blocks = 8;
  options.slots = 2;
  options.threads = 1;
  options.max_step_tokens = 64;
  return options;
}

TEST(MemoryPlanTest, FitsUpToTheLimitAndNotOneByteMore) {
  MemoryPlan plan{.weights_bytes = 1,
                  .pages_bytes = 2,
                  .slots_bytes = 3,
                  .staging_bytes = 4,
                  .workspace_bytes = 5,
                  .physical_bytes = 100,
                  .limit_bytes = 15};
  EXPECT_OK(plan.Check());
  EXPECT_EQ(plan.headroom_bytes(), 0);
  plan.limit_bytes = 14;
  EXPECT_THAT(plan.Check(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("needs 15 bytes and may use 14"),
                             HasSubstr("--blocks"))));
}

TEST(MemoryPlanTest, CostsGrowWithBlocksSlotsAndStepTokens) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       checkpoint::Checkpoint::Open(Options().model));
  ASSERT_OK_AND_ASSIGN(
      const auto format,
      kv::StateFormatFromName("f32",
                              model::Model::GeometryOf(checkpoint->config())));
  const PlanMemoryInputs inputs{.tensor_bytes = 7,
                                .config = checkpoint->config(),
                                .format = format,
                                .physical_bytes = 1000};
  WorkerOptions options = Options();
  options.memory_fraction = 0.5;
  options.reserve_memory_bytes = 100;
  ASSERT_OK_AND_ASSIGN(const MemoryPlan one, PlanMemory(inputs, options));
  EXPECT_EQ(one.weights_bytes, 7);
  EXPECT_EQ(one.limit_bytes, 400);
  options.blocks *= 2;
  options.slots *= 2;
  options.max_step_tokens *= 2;
  ASSERT_OK_AND_ASSIGN(const MemoryPlan two, PlanMemory(inputs, options));
  EXPECT_EQ(two.pages_bytes, 2 * one.pages_bytes);
  EXPECT_EQ(two.slots_bytes, 2 * one.slots_bytes);
  EXPECT_EQ(two.workspace_bytes, 2 * one.workspace_bytes);
  EXPECT_EQ(two.staging_bytes, one.staging_bytes);
}

TEST(WorkerRuntimeTest, LoadsTheDemoModelAsPlanned) {
  ASSERT_OK_AND_ASSIGN(const auto runtime, WorkerRuntime::Create(Options()));
  EXPECT_EQ(runtime->pool()->counts().total, 8);
  EXPECT_EQ(runtime->pool()->counts().slots_total, 2);
  EXPECT_EQ(runtime->store()->page_bytes(), runtime->memory_plan().pages_bytes);
  EXPECT_EQ(runtime->store()->slot_bytes(), runtime->memory_plan().slots_bytes);
  EXPECT_EQ(runtime->state_format_hash(), runtime->state_format().Hash());
  EXPECT_EQ(runtime->model()->max_positions(), 4096);
  EXPECT_GT(runtime->memory_plan().weights_bytes, 1 << 20);
}

TEST(WorkerRuntimeTest, RefusesAPlanThatDoesNotFit) {
  WorkerOptions options = Options();
  options.reserve_memory_bytes = int64_t{1} << 60;
  EXPECT_THAT(WorkerRuntime::Create(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--reserve-memory")));
}

TEST(WorkerRuntimeTest, PassesCheckpointErrorsOn) {
  WorkerOptions options = Options();
  options.model = SourcePath("no-such-folder");
  EXPECT_THAT(WorkerRuntime::Create(options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such")));
}

TEST(WorkerRuntimeTest, PhysicalMemoryIsPlausible) {
  EXPECT_GT(PhysicalMemoryBytes(), int64_t{64} << 20);
}

}  // namespace
}  // namespace baton::worker
