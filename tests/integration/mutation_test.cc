// Mutations of the hand-off must fail: each is armed in a running cluster, and
// the request ends as a clear status, never as text. Prints the kill table.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/request/request.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"

namespace baton::integration {
namespace {

// Regions of the demo model: 7 layers of ratios 0, 0, 4, 128, 4, 128, 4.
std::vector<std::string> DemoRegions() {
  std::vector<std::string> out;
  const int ratios[] = {0, 0, 4, 128, 4, 128, 4};
  for (int layer = 0; layer < 7; ++layer) {
    const std::string l = absl::StrCat("l", layer, ".");
    out.push_back(l + "window");
    if (ratios[layer] == 4) {
      for (const char* c : {"c4", "c4_index", "c4_tail", "c4_index_tail"}) {
        out.push_back(l + c);
      }
    } else if (ratios[layer] == 128) {
      out.push_back(l + "c128");
      out.push_back(l + "c128_tail");
    }
  }
  return out;
}

struct Answer {
  absl::Status status;
  std::vector<int32_t> ids;
};

class Mutations : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start({});
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = *std::move(cluster);
  }

  Answer Ask(int32_t prompt_tokens) {
    v1::GenerateRequest request;
    for (int32_t i = 0; i < prompt_tokens; ++i) {
      request.mutable_token_ids()->add_ids(300 + (i * 7) % 1500);
    }
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(6);
    request.mutable_sampling()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    Answer answer;
    answer.status = cluster_->client().Generate(
        request, absl::Seconds(30), [&answer](const v1::GenerateResponse& e) {
          if (e.has_delta()) {
            answer.ids.insert(answer.ids.end(), e.delta().token_ids().begin(),
                              e.delta().token_ids().end());
          }
          return true;
        });
    return answer;
  }

  // Arms `fault` in `worker`, asks, prints the row of the kill table.
  void MustFail(const std::string& worker, const std::string& fault,
                int32_t prompt_tokens) {
    ASSERT_OK(cluster_->Arm(worker, absl::StrCat(fault, "=fire")));
    const Answer answer = Ask(prompt_tokens);
    std::printf(
        "%-10s %-36s N=%-4d -> %s (%s)\n", worker.c_str(), fault.c_str(),
        prompt_tokens, absl::StatusCodeToString(answer.status.code()).c_str(),
        std::string(
            request::ErrorReasonName(request::InfoOf(answer.status).reason))
            .c_str());
    EXPECT_FALSE(answer.status.ok()) << fault;
    EXPECT_NE(answer.status.code(), absl::StatusCode::kDeadlineExceeded)
        << fault << ": noticed, not timed out";
    EXPECT_NE(request::InfoOf(answer.status).reason,
              request::ErrorReason::kUnspecified)
        << fault;
    EXPECT_TRUE(answer.ids.empty()) << fault << " became text";
    ASSERT_OK(cluster_->Arm(worker, ""));
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(Mutations, EachEndsAsAStatusAndNeverAsText) {
  // 391 % 4 == 3 and 391 % 128 == 7: every region has rows. 392 % 4 == 0: only
  // half A of the last window is in the C4 tails.
  constexpr int32_t kAll = 391;
  constexpr int32_t kMultipleOf4 = 392;
  // Acts when a link is opened: before any is.
  MustFail("prefill-0", "handoff.stale_incarnation", kAll);
  const Answer golden = Ask(kAll);
  ASSERT_OK(golden.status);
  const Answer golden4 = Ask(kMultipleOf4);
  ASSERT_OK(golden4.status);

  for (const std::string& region : DemoRegions()) {
    MustFail("prefill-0", absl::StrCat("handoff.omit_region@", region), kAll);
  }
  for (const char* region : {"l2.c4", "l3.c128", "l0.window", "l6.c4_index"}) {
    MustFail("prefill-0", absl::StrCat("handoff.omit_region_rows@", region),
             kAll);
    MustFail("prefill-0", absl::StrCat("handoff.flip_byte@", region), kAll);
  }
  for (const char* region : {"l2.c4_tail", "l4.c4_index_tail"}) {
    MustFail("prefill-0", absl::StrCat("handoff.drop_half_a@", region),
             kMultipleOf4);
    MustFail("prefill-0", absl::StrCat("handoff.tail_off_by_one@", region),
             kAll);
  }
  for (const char* fault :
       {"handoff.stale_attempt", "handoff.wrong_prompt_hash",
        "handoff.wrong_token_count", "handoff.wrong_state_format",
        "handoff.short_logits", "handoff.nan_logits", "handoff.wrong_logits",
        "prefill.cut_first_tokens", "prefill.replace_first_tokens",
        "transfer.corrupt_segment"}) {
    MustFail("prefill-0", fault, kAll);
  }
  EXPECT_OK(cluster_->WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster_->Bugs(), 0);
  const Answer after = Ask(kAll);
  EXPECT_OK(after.status);
  EXPECT_EQ(after.ids, golden.ids);
  EXPECT_EQ(Ask(kMultipleOf4).ids, golden4.ids);
}

TEST(PoisonedPages, ChangeNothing) {
  // Every free page and slot holds NaN: a stale row that is read shows at once.
  auto poisoned = Cluster::Start({.prefill_args = {"--poison-free-pages"},
                                  .decode_args = {"--poison-free-pages"}});
  ASSERT_TRUE(poisoned.ok()) << poisoned.status().ToString();
  auto plain = Cluster::Start({});
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  for (const int32_t tokens : {1, 3, 127, 128, 129, 200, 255, 256, 257, 700}) {
    v1::GenerateRequest request;
    for (int32_t i = 0; i < tokens; ++i) {
      request.mutable_token_ids()->add_ids(300 + (i * 11) % 1500);
    }
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(140);  // over a C128 border
    request.mutable_sampling()->set_ignore_eos(true);
    std::string texts[2];
    for (const bool use_poisoned : {false, true}) {
      const Cluster& cluster = use_poisoned ? **poisoned : **plain;
      EXPECT_OK(cluster.client().Generate(
          request, absl::Seconds(60), [&](const v1::GenerateResponse& event) {
            if (event.has_delta()) texts[use_poisoned] += event.delta().text();
            return true;
          }));
    }
    EXPECT_FALSE(texts[0].empty()) << tokens;
    EXPECT_EQ(texts[0], texts[1]) << tokens;
  }
}

}  // namespace
}  // namespace baton::integration
