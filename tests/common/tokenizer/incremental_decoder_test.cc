#include "common/tokenizer/incremental_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/base/random.h"
#include "common/testing/status_matchers.h"
#include "common/tokenizer/utf8.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::DemoTokenizer;
using ::baton::testing::RealTokenizer;
using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Ids Encode(const Tokenizer& tokenizer, absl::string_view text) {
  auto ids = tokenizer.Encode(text, AddedTokens::kMatch);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : Ids{};
}

// The id of one byte as a token.
int32_t ByteId(const Tokenizer& tokenizer, char byte) {
  return tokenizer.IdOf(absl::string_view(&byte, 1)).value();
}

std::vector<std::string> Deltas(const Tokenizer& tokenizer, const Ids& ids,
                                DecodeOptions options = {}) {
  IncrementalDecoder decoder(&tokenizer, options);
  std::vector<std::string> out;
  for (const int32_t id : ids) {
    auto delta = decoder.Append(id);
    EXPECT_TRUE(delta.ok()) << delta.status();
    if (delta.ok()) out.push_back(*delta);
    EXPECT_LE(decoder.held_bytes(), 3);
  }
  out.push_back(decoder.Flush());
  EXPECT_EQ(decoder.held_bytes(), 0);
  return out;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

TEST(IncrementalDecoderTest, SplitCharactersAreHeldBack) {
  // One token per byte: emoji, CJK, Hebrew.
  const Tokenizer& tokenizer = DemoTokenizer();
  Ids ids;
  for (const char byte : std::string("😀中ש")) {
    ids.push_back(ByteId(tokenizer, byte));
  }
  EXPECT_THAT(Deltas(tokenizer, ids),
              ElementsAre("", "", "", "😀", "", "", "中", "", "ש", ""));
}

// pitfalls B034: a token that starts with a space must not cut a character.
TEST(IncrementalDecoderTest, ASpaceTokenInsideACharacterEndsItVisibly) {
  const Tokenizer& tokenizer = DemoTokenizer();
  const int32_t lead = ByteId(tokenizer, '\xD7');
  const int32_t tail = ByteId(tokenizer, '\xA9');
  const int32_t space_word = Encode(tokenizer, " the")[0];
  ASSERT_EQ(Encode(tokenizer, " the").size(), 1u);
  EXPECT_THAT(Deltas(tokenizer, {lead, tail, space_word}),
              ElementsAre("", "ש", " the", ""));
  EXPECT_THAT(Deltas(tokenizer, {lead, space_word, tail}),
              ElementsAre("", "\uFFFD the", "\uFFFD", ""));
}

TEST(IncrementalDecoderTest, FlushTurnsLeftoversIntoOneReplacement) {
  const Tokenizer& tokenizer = DemoTokenizer();
  const Ids ids = {ByteId(tokenizer, '\xF0'), ByteId(tokenizer, '\x9F'),
                   ByteId(tokenizer, '\x98')};
  EXPECT_THAT(Deltas(tokenizer, ids), ElementsAre("", "", "", "\uFFFD"));
  EXPECT_THAT(Deltas(tokenizer, {ByteId(tokenizer, '\xC4')}),
              ElementsAre("", "\uFFFD"));
  EXPECT_THAT(Deltas(tokenizer, {}), ElementsAre(""));
}

TEST(IncrementalDecoderTest, TheDecoderIsAsNewAfterFlush) {
  IncrementalDecoder decoder(&DemoTokenizer(), {});
  EXPECT_EQ(decoder.AppendBytes("\xE4\xBD"), "");
  EXPECT_EQ(decoder.held_bytes(), 2);
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.AppendBytes("\xA0"), "\uFFFD");
  EXPECT_EQ(decoder.AppendBytes("ok"), "ok");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(IncrementalDecoderTest, OnlyTheListedTokensAreSkipped) {
  for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
    const Ids ids = Encode(*tokenizer,
                           "<｜begin▁of▁sentence｜><think>a</think><｜User｜>"
                           "｜DSML｜<｜end▁of▁sentence｜>");
    ASSERT_EQ(ids.size(), 7u);
    EXPECT_EQ(Join(Deltas(*tokenizer, ids, {.skip_ids = {0, 1, 2}})),
              "<think>a</think><｜User｜>｜DSML｜");
    EXPECT_EQ(Join(Deltas(*tokenizer, ids)),
              "<｜begin▁of▁sentence｜><think>a</think><｜User｜>｜DSML｜"
              "<｜end▁of▁sentence｜>");
  }
}

TEST(IncrementalDecoderTest, BytesJoinAcrossASkippedToken) {
  const Tokenizer& tokenizer = DemoTokenizer();
  const Ids ids = {ByteId(tokenizer, '\xD7'), 2, ByteId(tokenizer, '\xA9')};
  EXPECT_THAT(Deltas(tokenizer, ids, {.skip_ids = {2}}),
              ElementsAre("", "", "ש", ""));
}

TEST(IncrementalDecoderTest, UnknownIdsAreRefusedAndChangeNothing) {
  IncrementalDecoder decoder(&DemoTokenizer(), {});
  EXPECT_EQ(decoder.AppendBytes("\xD7"), "");
  for (const int32_t id : {-1, 2048, 1 << 30}) {
    EXPECT_THAT(decoder.Append(id), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("vocabulary of 2048")));
  }
  EXPECT_EQ(decoder.AppendBytes("\xA9"), "ש");
}

TEST(IncrementalDecoderTest, DeltasJoinedEqualTheWholeForRandomIds) {
  constexpr uint64_t kSeed = 5;
  SeededRandom random(kSeed);
  for (int32_t round = 0; round < 600; ++round) {
    const Tokenizer& tokenizer =
        round % 2 == 0 ? DemoTokenizer() : RealTokenizer();
    Ids ids;
    for (int32_t i = 0; i < round % 50; ++i) {
      int32_t id = static_cast<int32_t>(
          random.Uint64() % static_cast<uint64_t>(tokenizer.vocab_size()));
      if (random.Uniform() < 0.6) {
        id = ByteId(tokenizer, static_cast<char>(random.Uint64() & 0xFF));
      }
      ids.push_back(id);
    }
    const std::vector<std::string> deltas = Deltas(tokenizer, ids);
    for (const std::string& delta : deltas) {
      EXPECT_EQ(FirstInvalidUtf8(delta), std::nullopt);
    }
    ASSERT_OK_AND_ASSIGN(const std::string bytes, tokenizer.DecodeBytes(ids));
    EXPECT_EQ(Join(deltas), ToValidUtf8(bytes))
        << "seed " << kSeed << " round " << round;
  }
}

// pitfalls B033.
TEST(IncrementalDecoderTest, TextOfTheModelStreamsWithoutReplacements) {
  const std::string text =
      "ď and 🧑‍🚀 twenty times: ď🧑‍🚀ď🧑‍🚀 עברית "
      "漢字";
  for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
    EXPECT_EQ(Join(Deltas(*tokenizer, Encode(*tokenizer, text))), text);
  }
}

}  // namespace
}  // namespace baton::tokenizer
