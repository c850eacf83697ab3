#include "common/model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "common/model/compute_policy.h"
#include "common/testing/status_matchers.h"

namespace baton::model {
namespace {

using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PlanLimits kLimits = {
    .max_tokens = 300, .max_spans = 3, .max_positions = 1000, .vocab_size = 50};

class PlanTest : public ::testing::Test {
 protected:
  Span MakeSpan(int32_t slot, int64_t first, size_t n) const {
    return {.sequence = {blocks_, slot},
            .first_position = first,
            .tokens = absl::MakeConstSpan(tokens_).first(n)};
  }

  std::vector<BlockId> blocks_ = {BlockId{7}, BlockId{3}, BlockId{9},
                                  BlockId{1}};
  std::vector<int32_t> tokens_ = [] {
    std::vector<int32_t> ids(400);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(i % 50);
    return ids;
  }();
};

TEST_F(PlanTest, LaysSpansOutFlat) {
  std::vector<Span> spans = {MakeSpan(4, 254, 3), MakeSpan(2, 0, 1),
                             MakeSpan(5, 600, 2)};
  spans[0].logits = LogitsWanted::kLast;
  spans[2].logits = LogitsWanted::kAll;
  ASSERT_OK_AND_ASSIGN(const StepInputs in, PlanStep(spans, kLimits));
  EXPECT_EQ(in.num_tokens, 6);
  EXPECT_EQ(in.num_spans, 3);
  const auto head = [](const auto& values, size_t n) {
    return std::vector(values.begin(),
                       values.begin() + static_cast<int64_t>(n));
  };
  EXPECT_THAT(head(in.token_ids, 6), ElementsAre(0, 1, 2, 0, 0, 1));
  EXPECT_THAT(head(in.positions, 6), ElementsAre(254, 255, 256, 0, 600, 601));
  EXPECT_THAT(head(in.span_of_token, 6), ElementsAre(0, 0, 0, 1, 2, 2));
  EXPECT_THAT(head(in.span_first, 3), ElementsAre(254, 0, 600));
  EXPECT_THAT(in.span_begin, ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(in.slots, ElementsAre(4, 2, 5));
  EXPECT_EQ(in.num_logits, 3);
  EXPECT_THAT(head(in.logits_rows, 3), ElementsAre(2, 4, 5));
  // Only the blocks that the positions need are named.
  EXPECT_EQ(in.max_blocks, 4);
  EXPECT_THAT(in.block_tables,
              ElementsAre(7, 3, -1, -1, 7, -1, -1, -1, 7, 3, 9, -1));
}

TEST_F(PlanTest, ArraysHaveTheSameSizesForEveryStep) {
  ASSERT_OK_AND_ASSIGN(const StepInputs empty, PlanStep({}, kLimits));
  const Span span = MakeSpan(0, 0, 300);
  ASSERT_OK_AND_ASSIGN(const StepInputs full, PlanStep({&span, 1}, kLimits));
  EXPECT_EQ(empty.num_tokens, 0);
  EXPECT_EQ(full.num_tokens, 300);
  EXPECT_EQ(empty.token_ids.size(), full.token_ids.size());
  EXPECT_EQ(empty.block_tables.size(), full.block_tables.size());
  EXPECT_EQ(empty.logits_rows.size(), full.logits_rows.size());
}

TEST_F(PlanTest, RefusesWhatDoesNotFit) {
  struct Case {
    const char* message;
    std::function<std::vector<Span>()> spans;
  };
  std::vector<int32_t> bad_ids = {1, 50};
  std::vector<int32_t> negative = {-1};
  std::vector<BlockId> hole = {BlockId{1}, kNoBlock};
  const std::vector<Case> cases = {
      {"no tokens", [&] { return std::vector{MakeSpan(0, 0, 0)}; }},
      {"301 tokens; at most 300",
       [&] { return std::vector{MakeSpan(0, 0, 301)}; }},
      {"301 tokens; at most 300",
       [&] {
         return std::vector{MakeSpan(0, 0, 300), MakeSpan(1, 0, 1)};
       }},
      {"4 spans; at most 3",
       [&] {
         return std::vector{MakeSpan(0, 0, 1), MakeSpan(1, 0, 1),
                            MakeSpan(2, 0, 1), MakeSpan(3, 0, 1)};
       }},
      {"slot 1 is in an earlier span",
       [&] {
         return std::vector{MakeSpan(1, 0, 1), MakeSpan(1, 1, 1)};
       }},
      {"within 0 .. 999", [&] { return std::vector{MakeSpan(0, 999, 2)}; }},
      {"within 0 .. 999", [&] { return std::vector{MakeSpan(0, -1, 2)}; }},
      {"slot -1", [&] { return std::vector{MakeSpan(-1, 0, 2)}; }},
      {"token id 50 at position 6",
       [&] {
         return std::vector{Span{
             .sequence = {blocks_, 0}, .first_position = 5, .tokens = bad_ids}};
       }},
      {"token id -1",
       [&] {
         return std::vector{Span{.sequence = {blocks_, 0}, .tokens = negative}};
       }},
      {"257 positions need 2",
       [&] {
         Span span = MakeSpan(0, 256, 1);
         span.sequence.blocks = absl::MakeConstSpan(blocks_).first(1);
         return std::vector{span};
       }},
      {"no block at index 1",
       [&] {
         Span span = MakeSpan(0, 256, 1);
         span.sequence.blocks = hole;
         return std::vector{span};
       }},
  };
  for (const Case& test : cases) {
    EXPECT_THAT(
        PlanStep(test.spans(), kLimits),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.message)));
  }
}

TEST_F(PlanTest, AcceptsTheLastPosition) {
  const Span span = MakeSpan(0, 999, 1);
  EXPECT_OK(PlanStep({&span, 1}, kLimits));
}

TEST(ComputePolicyTest, ExactIsKnownAndOthersAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto policy, ComputePolicyFromName("exact"));
  EXPECT_EQ(policy.preset, PolicyPreset::kExact);
  EXPECT_THAT(ComputePolicyFromName("fast"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected one of: exact")));
}

}  // namespace
}  // namespace baton::model
