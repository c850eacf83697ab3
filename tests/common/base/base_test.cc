#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/cord.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/testing/fake_clock.h"
#include "common/testing/status_matchers.h"
#include "common/testing/sync_point.h"

namespace baton {
namespace {

using ::baton::testing::IsOk;
using ::baton::testing::StatusIs;
using ::testing::HasSubstr;

absl::StatusOr<int> Half(int v) {
  if (v % 2 != 0) return absl::InvalidArgumentError("odd");
  return v / 2;
}

absl::StatusOr<int> Quarter(int v) {
  ASSIGN_OR_RETURN(const int half, Half(v));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusMacros, ReturnTheFirstError) {
  ASSERT_OK_AND_ASSIGN(const int quarter, Quarter(12));
  EXPECT_EQ(quarter, 3);
  EXPECT_THAT(Quarter(6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("odd")));
}

TEST(StatusMacros, AnnotateKeepsCodeAndPayload) {
  absl::Status status = absl::DataLossError("bad row");
  status.SetPayload("u", absl::Cord("p"));
  const absl::Status out = Annotate(status, "hand-off 7");
  EXPECT_THAT(out, StatusIs(absl::StatusCode::kDataLoss,
                            HasSubstr("hand-off 7: bad row")));
  EXPECT_EQ(std::string(*out.GetPayload("u")), "p");
  EXPECT_THAT(Annotate(absl::OkStatus(), "x"), IsOk());
}

TEST(Check, EndsTheProcessWithItsMessage) {
  EXPECT_DEATH(CHECK(1 > 2) << "pool " << 7, "CHECK failed: 1 > 2 pool 7");
  EXPECT_DEATH(CHECK_EQ(1 + 1, 3), "2 vs 3");
  EXPECT_DEATH(CHECK_OK(absl::InternalError("boom")), "boom");
  CHECK(true) << "never evaluated";
}

TEST(Ids, BytesAndHexRoundTrip) {
  const HandoffId id{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(ToHex(id), "0123456789abcdeffedcba9876543210");
  ASSERT_OK_AND_ASSIGN(const HandoffId back, FromBytes<HandoffId>(ToBytes(id)));
  EXPECT_EQ(back, id);
  EXPECT_THAT(FromBytes<HandoffId>("short"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected exactly 16")));
}

TEST(Ids, MintedIdsDiffer) {
  EXPECT_NE(HandoffId::Mint(Random::System()),
            HandoffId::Mint(Random::System()));
  SeededRandom a(5);
  SeededRandom b(5);
  EXPECT_EQ(RequestId::Mint(&a), RequestId::Mint(&b));
}

TEST(Random, UniformStaysBelowOne) {
  SeededRandom random(1);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double u = random.Uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  // Five standard errors of the mean of 10,000 uniforms.
  EXPECT_NEAR(sum / 10'000, 0.5, 5 * 0.2887 / 100);
}

TEST(Hash, Sha256MatchesItsPublishedVector) {
  EXPECT_EQ(HexOf(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, BlockHashesChainAndCoverFullBlocksOnly) {
  std::vector<int32_t> ids(10);
  for (int32_t i = 0; i < 10; ++i) ids[static_cast<size_t>(i)] = i;
  const Sha256Digest root = Sha256("root");
  const auto a = HashBlocks(root, ids, 4);
  ASSERT_EQ(a.size(), 2U);
  ids[0] = 99;
  const auto b = HashBlocks(root, ids, 4);
  EXPECT_NE(a[0], b[0]);
  EXPECT_NE(a[1], b[1]) << "a block's hash covers its predecessors";
  EXPECT_NE(HashBlocks(Sha256("other"), ids, 4)[0], b[0]);
}

TEST(Hash, PromptHashSeesEveryId) {
  EXPECT_NE(HashTokenIds({1, 2, 3}), HashTokenIds({1, 2, 4}));
  EXPECT_NE(HashTokenIds({1, 2}), HashTokenIds({1, 2, 0}));
}

TEST(Bug, IsCounted) {
  const int64_t before = BugCount();
  ReportBug("base_test", "on purpose");
  EXPECT_EQ(BugCount(), before + 1);
}

#ifdef BATON_FAULT_POINTS
TEST(FaultPoint, SpecArmsNameDetailAndCount) {
  FaultRegistry& registry = FaultRegistry::Global();
  ASSERT_OK(registry.ArmFromSpec("a.b@l2.c4*2=fire;c=sleep:0"));
  EXPECT_FALSE(BATON_FAULT("a.b", "l3.c4"));
  EXPECT_TRUE(BATON_FAULT("a.b", "l2.c4"));
  EXPECT_TRUE(BATON_FAULT("a.b", "l2.c4"));
  EXPECT_FALSE(BATON_FAULT("a.b", "l2.c4"));
  EXPECT_FALSE(BATON_FAULT("c", ""));
  EXPECT_FALSE(BATON_FAULT("unarmed", ""));
  EXPECT_EQ(registry.hits("a.b"), 4);
  registry.DisarmAll();
}

TEST(FaultPoint, BadSpecsAreNamed) {
  for (const char* bad : {"x", "x=run", "=fire", "x*0=fire", "x=sleep:soon"}) {
    EXPECT_THAT(FaultRegistry::Global().ArmFromSpec(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
  FaultRegistry::Global().DisarmAll();
}

TEST(SyncPoint, HoldsAThreadUntilReleased) {
  std::atomic<bool> passed{false};
  baton::testing::SyncPoint point("base_test.here");
  Thread thread("held", [&passed] {
    BATON_FAULT_POINT("base_test.here");
    passed.store(true);
  });
  ASSERT_TRUE(point.WaitUntilReached());
  EXPECT_FALSE(passed.load());
  point.Release();
  thread.Join();
  EXPECT_TRUE(passed.load());
}
#endif

TEST(FakeClock, MovesOnlyWhenTold) {
  baton::testing::FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(3));
}

}  // namespace
}  // namespace baton
