// Bits of logits and cached rows depend on the sequence's tokens only: not on
// chunking, batch composition, block placement, threads or stale memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/testing/status_matchers.h"
#include "tests/numeric/oracle_support.h"

namespace baton::numeric {
namespace {

using model::LogitsWanted;

// Ids of real text, long enough for every length used here.
std::vector<int32_t> Text(absl::string_view checkpoint, size_t length) {
  const Golden golden(checkpoint);
  std::vector<int32_t> ids;
  for (int32_t i = golden.Count("prompt") - 1; ids.size() < length && i >= 0;
       --i) {
    const auto more = golden.Ints(absl::StrCat("prompt.", i, ".ids"));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  CHECK(ids.size() >= length);
  ids.resize(length);
  return ids;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Outcome {
  std::vector<float> logits;  // of the last position
  std::vector<std::byte> rows;

  friend bool operator==(const Outcome& a, const Outcome& b) {
    return SameBits(a.logits, b.logits) && a.rows == b.rows;
  }
};

absl::StatusOr<Outcome> RunPrompt(Rig* rig, absl::Span<const int32_t> ids,
                                  int64_t chunk) {
  auto sequence = rig->NewSequence(static_cast<int64_t>(ids.size()));
  Outcome outcome;
  ASSIGN_OR_RETURN(outcome.logits,
                   rig->Feed(&sequence, ids, chunk, LogitsWanted::kLast));
  outcome.rows = rig->CachedRows(sequence);
  rig->Release(sequence);
  return outcome;
}

struct FormatCase {
  std::string name;
  std::string checkpoint;
  std::string format;
  bool rotated;
};

class InvarianceTest : public ::testing::TestWithParam<FormatCase> {
 protected:
  RigOptions Options() const {
    return {.checkpoint = GetParam().checkpoint,
            .format = GetParam().format,
            .rotated = GetParam().rotated,
            .max_step_tokens = 1024};
  }
};

TEST_P(InvarianceTest, ChunkSizesGiveTheSameBits) {
  ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create(Options()));
  const auto text = Text(GetParam().checkpoint, 640);
  for (const size_t n : {255, 256, 257, 511, 512, 513, 640}) {
    const auto ids = absl::MakeConstSpan(text).first(n);
    ASSERT_OK_AND_ASSIGN(const Outcome whole,
                         RunPrompt(rig.get(), ids, static_cast<int64_t>(n)));
    for (const int64_t chunk : {1, 3, 4, 127, 128, 129, 256}) {
      ASSERT_OK_AND_ASSIGN(const Outcome cut, RunPrompt(rig.get(), ids, chunk));
      EXPECT_TRUE(cut == whole) << "N = " << n << ", chunks of " << chunk;
    }
  }
}

TEST_P(InvarianceTest, EachPositionsLogitsAreThoseOfItsOwnPrefix) {
  ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create(Options()));
  const auto ids = Text(GetParam().checkpoint, 300);
  const auto vocab = static_cast<size_t>(rig->vocab());
  auto sequence = rig->NewSequence(300);
  ASSERT_OK_AND_ASSIGN(const auto all,
                       rig->Feed(&sequence, ids, 300, LogitsWanted::kAll));
  rig->Release(sequence);
  auto stepwise = rig->NewSequence(300);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const auto one, rig->Feed(&stepwise, {&ids[i], 1}, 1,
                                                   LogitsWanted::kLast));
    ASSERT_EQ(std::memcmp(one.data(), all.data() + i * vocab, vocab * 4), 0)
        << "position " << i;
  }
}

TEST_P(InvarianceTest, DecodeAcrossTwoBlockBordersEqualsOneLongerPrefill) {
  ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create(Options()));
  const auto text = Text(GetParam().checkpoint, 550);
  const auto ids = absl::MakeConstSpan(text);
  auto decoded = rig->NewSequence(550);
  ASSERT_OK(rig->Feed(&decoded, ids.first(250), 250, LogitsWanted::kNone));
  std::vector<float> last;
  for (size_t i = 250; i < 550; ++i) {
    ASSERT_OK_AND_ASSIGN(
        last, rig->Feed(&decoded, ids.subspan(i, 1), 1, LogitsWanted::kLast));
  }
  auto prefilled = rig->NewSequence(550);
  ASSERT_OK_AND_ASSIGN(const auto whole,
                       rig->Feed(&prefilled, ids, 550, LogitsWanted::kLast));
  EXPECT_TRUE(SameBits(last, whole));
  EXPECT_TRUE(rig->CachedRows(decoded) == rig->CachedRows(prefilled));
}

TEST_P(InvarianceTest, StaleMemoryIsNeverRead) {
  ASSERT_OK_AND_ASSIGN(const auto clean, Rig::Create(Options()));
  RigOptions options = Options();
  options.poison = true;
  ASSERT_OK_AND_ASSIGN(const auto poisoned, Rig::Create(options));
  const auto text = Text(GetParam().checkpoint, 600);
  for (const size_t n : {1, 3, 4, 5, 127, 128, 129, 255, 256, 257, 600}) {
    const auto ids = absl::MakeConstSpan(text).first(n);
    for (const int64_t chunk : {7, 600}) {
      ASSERT_OK_AND_ASSIGN(const Outcome a, RunPrompt(clean.get(), ids, chunk));
      ASSERT_OK_AND_ASSIGN(const Outcome b,
                           RunPrompt(poisoned.get(), ids, chunk));
      EXPECT_TRUE(a == b) << "N = " << n << ", chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, InvarianceTest,
    ::testing::Values(FormatCase{"demo_f32", "demo", "f32", false},
                      FormatCase{"demo_bf16_rotated", "demo", "bf16", true},
                      FormatCase{"random_f32_rotated", "random", "f32", true},
                      FormatCase{"random_bf16", "random", "bf16", false}),
    [](const auto& test) { return test.param.name; });

// Sequences of different lengths at once: prompts cut at random places, decode
// tokens of others in the same steps, in a random order, against each alone.
TEST(BatchInvarianceTest, CompanyAndOrderDoNotChangeBits) {
  constexpr size_t kSequences = 8;
  ASSERT_OK_AND_ASSIGN(const auto rig,
                       Rig::Create({.num_blocks = 64, .num_slots = 16}));
  const auto text = Text("demo", 2000);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Outcome> alone;
  for (size_t i = 0; i < kSequences; ++i) {
    const size_t length =
        std::vector<size_t>{1, 3, 40, 127, 129, 256, 300, 413}[i];
    prompts.emplace_back(text.begin() + static_cast<int64_t>(i) * 97,
                         text.begin() + static_cast<int64_t>(i * 97 + length));
    ASSERT_OK_AND_ASSIGN(
        alone.emplace_back(),
        RunPrompt(rig.get(), prompts[i], static_cast<int64_t>(length)));
  }
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SeededRandom random(seed);
    std::vector<Rig::Sequence> sequences;
    std::vector<std::vector<float>> last(kSequences);
    for (const auto& prompt : prompts) {
      sequences.push_back(
          rig->NewSequence(static_cast<int64_t>(prompt.size())));
    }
    for (;;) {
      std::vector<size_t> order;
      for (size_t i = 0; i < kSequences; ++i) {
        if (sequences[i].state.processed <
            static_cast<int64_t>(prompts[i].size())) {
          order.insert(order.begin() + static_cast<int64_t>(random.Uint64() %
                                                            (order.size() + 1)),
                       i);
        }
      }
      if (order.empty()) break;
      // Some sit a step out.
      while (order.size() > 1 && random.Uint64() % 3 == 0) order.pop_back();
      std::vector<model::Span> spans;
      int64_t room = 512;
      for (const size_t i : order) {
        const auto& state = sequences[i].state;
        const auto left = absl::MakeConstSpan(prompts[i])
                              .subspan(static_cast<size_t>(state.processed));
        const size_t most =
            random.Uint64() % 2 == 0 ? 1 : 1 + random.Uint64() % 200;
        const auto part = left.first(
            std::min({left.size(), most, static_cast<size_t>(room)}));
        if (part.empty()) break;
        room -= static_cast<int64_t>(part.size());
        spans.push_back({.sequence = state.view(),
                         .first_position = state.processed,
                         .tokens = part,
                         .logits = part.size() == left.size()
                                       ? LogitsWanted::kLast
                                       : LogitsWanted::kNone});
      }
      ASSERT_OK_AND_ASSIGN(const auto inputs, rig->model().Plan(spans));
      std::vector<float> logits;
      ASSERT_OK(rig->model().Run(inputs, &rig->store(), &logits));
      auto row = logits.begin();
      for (size_t s = 0; s < spans.size(); ++s) {
        const size_t i = order[s];
        sequences[i].state.Commit(static_cast<int64_t>(spans[s].tokens.size()));
        if (spans[s].logits == LogitsWanted::kLast) {
          last[i].assign(row, row + rig->vocab());
          row += rig->vocab();
        }
      }
    }
    for (size_t i = 0; i < kSequences; ++i) {
      const Outcome together{last[i], rig->CachedRows(sequences[i])};
      EXPECT_TRUE(together == alone[i]) << "sequence " << i;
      rig->Release(sequences[i]);
    }
  }
}

TEST(BatchInvarianceTest, ThreadsDoNotChangeBits) {
  const auto text = Text("demo", 300);
  std::vector<Outcome> outcomes;
  for (const int32_t threads : {1, 2, 5}) {
    ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create({.threads = threads}));
    ASSERT_OK_AND_ASSIGN(outcomes.emplace_back(),
                         RunPrompt(rig.get(), text, 200));
  }
  EXPECT_TRUE(outcomes[0] == outcomes[1]);
  EXPECT_TRUE(outcomes[0] == outcomes[2]);
}

// Rotating both sides changes the rounding of scores and nothing else.
// One-sided rotation would give another selection altogether.
TEST(RotationTest, RotatedIndexRowsSelectTheSame) {
  const auto text = Text("demo", 1500);
  std::vector<Outcome> outcomes;
  for (const bool rotated : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create({.rotated = rotated}));
    ASSERT_OK_AND_ASSIGN(outcomes.emplace_back(),
                         RunPrompt(rig.get(), text, 512));
  }
  EXPECT_FALSE(outcomes[0].rows == outcomes[1].rows) << "nothing was rotated";
  float worst = 0;
  for (size_t i = 0; i < outcomes[0].logits.size(); ++i) {
    worst = std::max(worst,
                     std::fabs(outcomes[0].logits[i] - outcomes[1].logits[i]));
  }
  // Two rows of nearly equal score at the edge of the selection may change
  // places, which moves a logit by less than 1e-2; a wrong selection moves some
  // by more than 1.
  EXPECT_LT(worst, 0.05f);
}

TEST(ForkTest, BothBranchesContinueAsIfAlone) {
  const auto text = Text("demo", 700);
  const auto ids = absl::MakeConstSpan(text);
  ASSERT_OK_AND_ASSIGN(const auto rig, Rig::Create({.num_blocks = 40}));
  for (const size_t n : {1, 100, 255, 256, 257, 400, 512}) {
    SCOPED_TRACE(n);
    auto parent = rig->NewSequence(640);
    auto child = rig->NewSequence(640);
    ASSERT_OK(rig->Feed(&parent, ids.first(n), 512, LogitsWanted::kNone));
    // The full blocks of the child are the parent's.
    const std::vector<BlockId> own = child.state.blocks;
    for (size_t b = 0; b < n / 256; ++b) {
      child.state.blocks[b] = parent.state.blocks[b];
    }
    model::Fork(parent.state, &child.state, &rig->store());
    EXPECT_EQ(child.state.processed, static_cast<int64_t>(n));
    // The child goes another way, the parent on; then both against one run.
    const std::vector<int32_t> other(ids.begin() + 600, ids.begin() + 640);
    const auto on = ids.subspan(n, 40);
    ASSERT_OK_AND_ASSIGN(const auto child_logits,
                         rig->Feed(&child, other, 9, LogitsWanted::kLast));
    ASSERT_OK_AND_ASSIGN(const auto parent_logits,
                         rig->Feed(&parent, on, 9, LogitsWanted::kLast));
    std::vector<int32_t> joined(ids.begin(),
                                ids.begin() + static_cast<int64_t>(n));
    joined.insert(joined.end(), other.begin(), other.end());
    ASSERT_OK_AND_ASSIGN(const Outcome want_child,
                         RunPrompt(rig.get(), joined, 512));
    ASSERT_OK_AND_ASSIGN(const Outcome want_parent,
                         RunPrompt(rig.get(), ids.first(n + 40), 512));
    EXPECT_TRUE((Outcome{child_logits, rig->CachedRows(child)}) == want_child);
    EXPECT_TRUE((Outcome{parent_logits, rig->CachedRows(parent)}) ==
                want_parent);
    rig->Release(parent);
    rig->Release(child);
  }
}

}  // namespace
}  // namespace baton::numeric
