#include "common/tokenizer/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/testing/status_matchers.h"
#include "common/tokenizer/byte_alphabet.h"

namespace baton::tokenizer {
namespace {

#define FFFD "\xEF\xBF\xBD"

TEST(Utf8Test, OneReplacementPerMaximalSubpart) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", ""},
      {"abc", "abc"},
      {"\x80", FFFD},
      {"\x80\x80", FFFD FFFD},
      {"\xC0\x80", FFFD FFFD},  // overlong: lead byte never valid
      {"\xC3(", FFFD "("},
      {"\xE1\x80", FFFD},  // two bytes of three, one subpart
      {"\xE1\x80"
       "a",
       FFFD "a"},
      {"\xE0\x80\x80", FFFD FFFD FFFD},  // E0 needs A0..BF next
      {"\xED\xA0\x80", FFFD FFFD FFFD},  // surrogate
      {"\xF0\x80\x80\x80", FFFD FFFD FFFD FFFD},
      {"\xF0\x9F\x98", FFFD},
      {"\xF0\x9F\x98"
       "a",
       FFFD "a"},
      {"\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD},
      {"\xF5\x80", FFFD FFFD},
      {"\xFE\xFF", FFFD FFFD},
      // The Unicode standard's own example.
      {"a\xF1\x80\x80\xE1\x80\xC2"
       "b\x80"
       "c\x80\xBF"
       "d",
       "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d"},
  };
  for (const auto& [bytes, text] : rows) {
    EXPECT_EQ(ToValidUtf8(bytes), text);
    EXPECT_EQ(FirstInvalidUtf8(bytes).has_value(), bytes != text);
    EXPECT_EQ(FirstInvalidUtf8(ToValidUtf8(bytes)), std::nullopt);
  }
}

TEST(Utf8Test, TheEdgesOfEachLengthAreValid) {
  for (const char* text : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80",
                           "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(FirstInvalidUtf8(text), std::nullopt);
    EXPECT_EQ(ToValidUtf8(text), text);
  }
}

TEST(Utf8Test, ErrorsNameThePlace) {
  EXPECT_THAT(
      CheckUtf8("ab\xFF", "message 3"),
      testing::StatusIs(absl::StatusCode::kInvalidArgument,
                        "message 3 is not valid UTF-8 at byte 2 (0xff) of 3"));
}

TEST(ByteAlphabetTest, EveryByteComesBack) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(BytesOfAlphabetText(AlphabetTextOfBytes(bytes)), bytes);
  }
  EXPECT_EQ(AlphabetTextOfBytes(" a\n"), "Ġa\xC4\x8A");
  EXPECT_EQ(BytesOfAlphabetText(""), "");
  for (const char* text :
       {" ", "\n", "\xC2\xA0", "\xC5\x84", "\xE4\xBD\xA0", "\xC4", "\xFF",
        "\xC4"
        "a"}) {
    EXPECT_EQ(BytesOfAlphabetText(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace baton::tokenizer
