#include "common/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/testing/status_matchers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Split(absl::string_view pattern,
                               absl::string_view text) {
  std::vector<std::string> out;
  auto split = SplitPattern::Create(pattern);
  EXPECT_TRUE(split.ok()) << split.status();
  if (!split.ok()) return out;
  MatchScratch scratch;
  EXPECT_OK((*split)->Split(text, &scratch, [&](absl::string_view piece) {
    out.emplace_back(piece);
    return absl::OkStatus();
  }));
  return out;
}

std::string Utf8(uint32_t code_point) {
  std::string out;
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
  return out;
}

TEST(SplitPatternTest, MatchesAndGapsAreBothPieces) {
  EXPECT_THAT(Split("\\d{1,3}", "a12345b"), ElementsAre("a", "123", "45", "b"));
  EXPECT_THAT(Split("x", "yy"), ElementsAre("yy"));
  EXPECT_THAT(Split("x", "xx"), ElementsAre("x", "x"));
  EXPECT_THAT(Split("x", ""), ElementsAre());
}

// model.md 8.1 lists the set; PCRE2's own \s has U+180E as well.
TEST(SplitPatternTest, WhiteSpaceIsTheUnicodeSet) {
  const auto is_white_space = [](uint32_t c) {
    return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
  };
  for (const char* pattern : {"\\s", "[\\s]", "\\S", "[^\\s]"}) {
    const bool negated = pattern[1] == 'S' || pattern[1] == '^';
    auto split = SplitPattern::Create(pattern);
    ASSERT_OK(split);
    MatchScratch scratch;
    for (uint32_t c = 0; c < 0x10000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      // Two matches are two pieces, no match is one gap.
      int32_t pieces = 0;
      ASSERT_OK(
          (*split)->Split(Utf8(c) + Utf8(c), &scratch, [&](absl::string_view) {
            ++pieces;
            return absl::OkStatus();
          }));
      ASSERT_EQ(pieces, is_white_space(c) != negated ? 2 : 1)
          << pattern << " U+" << std::hex << c;
    }
  }
}

TEST(SplitPatternTest, LookAheadEndsWithTheText) {
  EXPECT_THAT(Split("\\s+(?!\\S)|\\s+", "a   b"),
              ElementsAre("a", "  ", " ", "b"));
  EXPECT_THAT(Split("\\s+(?!\\S)|\\s+", "a   "), ElementsAre("a", "   "));
}

TEST(SplitPatternTest, RefusesConstructsThatDifferBetweenEngines) {
  for (const char* pattern :
       {"\\h+", "\\w+", "\\b", "a\\1", "[a&&b]", "[[:alpha:]]", "[a[b]]", "^a",
        "a$", "a{,3}", "(*UCP)a", "(?<name>a)", "(?#x)a", "[\\S]", "[]a]",
        "\\pL", "a\\"}) {
    EXPECT_THAT(SplitPattern::Create(pattern),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("not supported")))
        << pattern;
  }
}

TEST(SplitPatternTest, BackTrackingIsBounded) {
  auto split = SplitPattern::Create("(?:a|aa)+\\d");
  ASSERT_OK(split);
  MatchScratch scratch;
  EXPECT_THAT(
      (*split)->Split(std::string(5000, 'a'), &scratch,
                      [](absl::string_view) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gave up")));
}

TEST(SplitPatternTest, AnErrorOfThePieceEndsTheSplit) {
  auto split = SplitPattern::Create("a");
  ASSERT_OK(split);
  MatchScratch scratch;
  int32_t calls = 0;
  EXPECT_THAT((*split)->Split("aaa", &scratch,
                              [&](absl::string_view) {
                                ++calls;
                                return absl::CancelledError("stop");
                              }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace baton::tokenizer
