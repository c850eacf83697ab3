#include "common/tokenizer/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/testing/status_matchers.h"
#include "common/tokenizer/utf8.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

StopMatcher Matcher(const Strings& stops) {
  auto set = StopSet::Create(stops);
  EXPECT_TRUE(set.ok()) << set.status();
  return StopMatcher(*std::move(set));
}

// Brute force: the match that ends first, then the one that begins first, then
// the lowest index.
std::optional<StopMatch> Find(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      for (size_t i = 0; i < stops.size(); ++i) {
        if (stops[i] == text.substr(begin, end - begin)) {
          return StopMatch{static_cast<int64_t>(begin),
                           static_cast<int64_t>(end), static_cast<int32_t>(i)};
        }
      }
    }
  }
  return std::nullopt;
}

// Bytes that cannot belong to a match in any continuation.
int64_t Safe(const Strings& stops, const std::string& text) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    const std::string tail = text.substr(begin);
    for (const std::string& stop : stops) {
      if (stop.size() > tail.size() && stop.substr(0, tail.size()) == tail) {
        return static_cast<int64_t>(begin);
      }
    }
  }
  return static_cast<int64_t>(text.size());
}

TEST(StopMatcherTest, NoStopStringsNeverHoldAnything) {
  StopMatcher matcher = Matcher({});
  EXPECT_FALSE(matcher.Push("any text").has_value());
  EXPECT_EQ(matcher.safe_bytes(), 8);
  EXPECT_FALSE(matcher.Push("").has_value());
  EXPECT_EQ(matcher.safe_bytes(), 8);
}

// pitfalls B039.
TEST(StopMatcherTest, NoPartOfAStopStringIsSafeBeforeItsEnd) {
  StopMatcher matcher = Matcher({"</end>"});
  EXPECT_FALSE(matcher.Push("text<").has_value());
  EXPECT_EQ(matcher.safe_bytes(), 4);
  EXPECT_FALSE(matcher.Push("/e").has_value());
  EXPECT_EQ(matcher.safe_bytes(), 4);
  const std::optional<StopMatch> match = matcher.Push("nd> more");
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 4);
  EXPECT_EQ(match->end, 10);
  EXPECT_EQ(matcher.safe_bytes(), 4);
  // Later bytes change nothing.
  EXPECT_EQ(matcher.Push("</end>")->end, 10);
  matcher.Finish();
  EXPECT_EQ(matcher.safe_bytes(), 4);
}

TEST(StopMatcherTest, HeldTextIsReleasedWhenTheMatchFails) {
  StopMatcher matcher = Matcher({"</end>"});
  matcher.Push("a</en");
  EXPECT_EQ(matcher.safe_bytes(), 1);
  matcher.Push("x");
  EXPECT_EQ(matcher.safe_bytes(), 6);
  // A failed match may begin another one.
  matcher.Push("</</e");
  EXPECT_EQ(matcher.safe_bytes(), 8);
}

// pitfalls B042.
TEST(StopMatcherTest, TheEndOfGenerationReleasesEverything) {
  StopMatcher matcher = Matcher({"ZZZ"});
  matcher.Push("aZZ");
  EXPECT_EQ(matcher.safe_bytes(), 1);
  matcher.Finish();
  EXPECT_EQ(matcher.safe_bytes(), 3);
}

TEST(StopMatcherTest, TheFirstEndWinsThenTheLongest) {
  struct Row {
    Strings stops;
    std::string text;
    StopMatch match;
  };
  const std::vector<Row> rows = {
      {{"abcd", "bc"}, "abcd", {1, 3, 1}},  // bc ends first
      {{"c", "abc", "bc"}, "abc", {0, 3, 1}}, {{"aa"}, "aaaa", {0, 2, 0}},
      {{"x", "x"}, "ax", {1, 2, 0}},          {{"ab", "b"}, "b", {0, 1, 1}},
      {{"aab"}, "aaaab", {2, 5, 0}},          {{"\n\n"}, "a\n \n\n", {3, 5, 0}},
  };
  for (const Row& row : rows) {
    StopMatcher matcher = Matcher(row.stops);
    const std::optional<StopMatch> match = matcher.Push(row.text);
    ASSERT_TRUE(match.has_value()) << row.text;
    EXPECT_EQ(match->begin, row.match.begin) << row.text;
    EXPECT_EQ(match->end, row.match.end) << row.text;
    EXPECT_EQ(match->index, row.match.index) << row.text;
  }
}

TEST(StopMatcherTest, MatchesAcrossUtf8Borders) {
  const std::string text = "good 👍🏽 end";
  StopMatcher matcher = Matcher({"🏽 e", "中"});
  for (const char byte : text) matcher.Push(absl::string_view(&byte, 1));
  ASSERT_TRUE(matcher.match().has_value());
  EXPECT_EQ(text.substr(0, static_cast<size_t>(matcher.match()->begin)),
            "good 👍");
}

TEST(StopMatcherTest, WholeCharactersInWholeCharactersOut) {
  // All begin with the same byte F0 9F.
  const std::vector<std::string> characters = {"a", "👍", "🏽", "😀", "b"};
  StopMatcher matcher = Matcher({"🏽😀!", "👍👍"});
  std::string text;
  for (const std::string& character : characters) {
    text += character;
    matcher.Push(character);
    const size_t safe = static_cast<size_t>(matcher.safe_bytes());
    EXPECT_EQ(FirstInvalidUtf8(text.substr(0, safe)), std::nullopt) << text;
  }
  EXPECT_EQ(matcher.safe_bytes(), static_cast<int64_t>(text.size()));
}

TEST(StopMatcherTest, AnEmptyStopStringIsRefused) {
  EXPECT_THAT(StopSet::Create({"a", ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("stop string 1 is empty")));
}

TEST(StopMatcherTest, AgreesWithBruteForceUnderAnyChunking) {
  constexpr uint64_t kSeed = 9;
  SeededRandom random(kSeed);
  const auto text_of = [&random](uint64_t length, uint64_t letters) {
    std::string out;
    for (uint64_t i = 0; i < length; ++i) {
      out.push_back(static_cast<char>('a' + random.Uint64() % letters));
    }
    return out;
  };
  for (int32_t round = 0; round < 3000; ++round) {
    const uint64_t letters = 1 + random.Uint64() % 3;
    Strings stops;
    const uint64_t count = random.Uint64() % 5;
    for (uint64_t i = 0; i < count; ++i) {
      stops.push_back(text_of(1 + random.Uint64() % 7, letters));
    }
    const std::string text = text_of(random.Uint64() % 30, letters + 1);
    StopMatcher matcher = Matcher(stops);
    int64_t last_safe = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random.Uint64() % 4;
      matcher.Push(text.substr(at, n));
      at = std::min(text.size(), at + n);
      const std::string so_far = text.substr(0, at);
      const std::optional<StopMatch> expected = Find(stops, so_far);
      ASSERT_EQ(matcher.match().has_value(), expected.has_value())
          << "seed " << kSeed << " round " << round;
      ASSERT_GE(matcher.safe_bytes(), last_safe);
      last_safe = matcher.safe_bytes();
      if (!expected.has_value()) {
        ASSERT_EQ(matcher.safe_bytes(), Safe(stops, so_far));
        continue;
      }
      ASSERT_EQ(matcher.match()->begin, expected->begin);
      ASSERT_EQ(matcher.match()->end, expected->end);
      ASSERT_EQ(stops[static_cast<size_t>(matcher.match()->index)],
                stops[static_cast<size_t>(expected->index)]);
      ASSERT_EQ(matcher.safe_bytes(), expected->begin);
    }
  }
}

TEST(StopMatcherTest, TenThousandStopStringsAreMatchedInLinearTime) {
  Strings stops;
  for (int32_t i = 0; i < 10000; ++i) {
    stops.push_back(absl::StrCat(std::string(50, 'a'), i, "!"));
  }
  StopMatcher matcher = Matcher(stops);
  // Worst case for backing up: runs of a's that fail again and again.
  std::string text;
  while (text.size() < (size_t{1} << 20)) {
    text += std::string(49, 'a') + "b" + std::string(60, 'a') + "99999?";
  }
  EXPECT_FALSE(matcher.Push(text).has_value());
  EXPECT_EQ(matcher.safe_bytes(), static_cast<int64_t>(text.size()));
  const std::optional<StopMatch> match = matcher.Push(stops[7777]);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->index, 7777);
  EXPECT_EQ(match->begin, static_cast<int64_t>(text.size()));
}

TEST(StopMatcherTest, SamplesShareOneSet) {
  ASSERT_OK_AND_ASSIGN(auto set, StopSet::Create({"ab"}));
  EXPECT_FALSE(set->empty());
  StopMatcher first(set);
  StopMatcher second(set);
  first.Push("a");
  EXPECT_FALSE(second.Push("b").has_value());
  EXPECT_TRUE(first.Push("b").has_value());
}

}  // namespace
}  // namespace baton::tokenizer
