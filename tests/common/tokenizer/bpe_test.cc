#include "common/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

std::array<int32_t, 256> Bytes() {
  std::array<int32_t, 256> ids{};
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return ids;
}

// The definition, word by word: scan for the lowest rank, leftmost, merge.
Ids EncodeByDefinition(const std::vector<BpeMerger::Merge>& merges,
                       const std::string& piece) {
  Ids ids(piece.begin(), piece.end());
  for (;;) {
    bool merged = false;
    for (const BpeMerger::Merge& merge : merges) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] == merge.left && ids[i + 1] == merge.right) {
          ids[i] = merge.merged;
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
      }
      if (merged) break;
    }
    if (!merged) return ids;
  }
}

TEST(BpeTest, NoBytesGiveNoIds) {
  const BpeMerger merger(Bytes(), {});
  Ids ids;
  merger.EncodeShort("", &ids);
  merger.EncodeLong("", &ids);
  EXPECT_THAT(ids, IsEmpty());
}

TEST(BpeTest, LowestRankFirstLeftmostOnEqualRank) {
  const std::vector<BpeMerger::Merge> merges = {
      {'b', 'c', 300}, {'a', 'b', 301}, {'a', 'a', 302}, {302, 'a', 303}};
  const BpeMerger merger(Bytes(), merges);
  const auto encode = [&merger](absl::string_view text) {
    Ids ids;
    merger.Encode(text, &ids);
    return ids;
  };
  EXPECT_THAT(encode("abc"), ElementsAre('a', 300));
  EXPECT_THAT(encode("ab"), ElementsAre(301));
  EXPECT_THAT(encode("aaa"), ElementsAre(303));
  EXPECT_THAT(encode("aaaa"), ElementsAre(302, 302));
  EXPECT_THAT(encode("aaaaa"), ElementsAre(302, 303));
}

TEST(BpeTest, BothWaysFollowTheDefinition) {
  constexpr uint64_t kSeed = 3;
  SeededRandom random(kSeed);
  for (int32_t round = 0; round < 300; ++round) {
    // Random merges over two or three letters, built from what exists already.
    std::vector<BpeMerger::Merge> merges;
    Ids known = {'a', 'b', 'c'};
    for (int32_t i = 0; i < 12; ++i) {
      const BpeMerger::Merge merge = {known[random.Uint64() % known.size()],
                                      known[random.Uint64() % known.size()],
                                      256 + i};
      bool repeated = false;
      for (const BpeMerger::Merge& other : merges) {
        repeated |= other.left == merge.left && other.right == merge.right;
      }
      if (repeated) continue;
      merges.push_back(merge);
      known.push_back(merge.merged);
    }
    const BpeMerger merger(Bytes(), merges);
    std::string piece;
    const uint64_t length = random.Uint64() % 80;
    for (uint64_t i = 0; i < length; ++i) {
      piece.push_back(static_cast<char>('a' + random.Uint64() % 3));
    }
    const Ids expected = EncodeByDefinition(merges, piece);
    Ids short_way;
    merger.EncodeShort(piece, &short_way);
    EXPECT_EQ(short_way, expected) << "seed " << kSeed << " round " << round;
    Ids long_way;
    merger.EncodeLong(piece, &long_way);
    EXPECT_EQ(long_way, expected) << "seed " << kSeed << " round " << round;
  }
}

TEST(BpeTest, AppendsBehindWhatIsThere) {
  const BpeMerger merger(Bytes(), {});
  Ids ids = {7};
  merger.EncodeShort("a", &ids);
  merger.EncodeLong("b", &ids);
  EXPECT_THAT(ids, ElementsAre(7, 'a', 'b'));
}

}  // namespace
}  // namespace baton::tokenizer
