#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::DemoTokenizer;
using ::baton::testing::RealTokenizer;
using ::baton::testing::SourcePath;
using ::baton::testing::StatusIs;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Ids = std::vector<int32_t>;

Ids Encode(const Tokenizer& tokenizer, absl::string_view text,
           AddedTokens added = AddedTokens::kMatch) {
  auto ids = tokenizer.Encode(text, added);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : Ids{-1};
}

nlohmann::json ReadJson(absl::string_view path) {
  std::ifstream file(SourcePath(path));
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

// model.md A7.
TEST(TokenizerTest, ReproducesThePublishedVectors) {
  const std::vector<std::pair<std::string, Ids>> rows = {
      {"The capital of France is", {671, 6102, 294, 8760, 344}},
      {"Hello, world!", {19923, 14, 2058, 3}},
      {"1234567890", {6895, 18009, 25744, 18}},
      {"你好世界", {30594, 3427}},
      {" ", {223}},
      {"\n", {201}},
      {"\n\n", {271}},
      {"<｜DSML｜invoke name=\"f\">",
       {30, 128825, 40148, 5406, 2329, 1281, 72, 3320}},
      {"Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
       {19923, 3,    223,   5464, 5008, 1175,  19,    940, 223,
        19,    438,  223,   20,   6113, 257,   76589, 131, 100,
        76032, 1628, 76589, 131,  108,  76589, 131,   98}},
  };
  for (const auto& [text, ids] : rows) {
    EXPECT_EQ(Encode(RealTokenizer(), text), ids) << text;
  }
}

// tests/data/README.md: written by the `tokenizers` library, which also wrote
// "plain_ids" from the same file without its added tokens.
TEST(TokenizerTest, AgreesWithTheTokenizersLibraryOnTheRealVocabulary) {
  int32_t rows = 0;
  for (const auto& row :
       ReadJson("tests/data/tokenizer/deepseek-v4-vectors.json")) {
    const std::string text = row["text"];
    const Ids ids = row["ids"];
    const Ids plain = row.contains("plain_ids") ? Ids(row["plain_ids"]) : ids;
    EXPECT_EQ(Encode(RealTokenizer(), text), ids) << text;
    EXPECT_EQ(Encode(RealTokenizer(), text, AddedTokens::kIgnore), plain)
        << text;
    ++rows;
  }
  EXPECT_GT(rows, 250);
}

TEST(TokenizerTest, AgreesWithTheTokenizersLibraryOnTheDemoVocabulary) {
  int32_t rows = 0;
  for (const auto& row :
       ReadJson("tests/data/oracle/demo-tokenizer-vectors.json")) {
    EXPECT_EQ(Encode(DemoTokenizer(), row["text"].get<std::string>()),
              row["ids"].get<Ids>())
        << row["text"];
    ++rows;
  }
  EXPECT_EQ(rows, 58);
}

TEST(TokenizerTest, KnowsItsVocabulary) {
  EXPECT_EQ(RealTokenizer().vocab_size(), 129280);
  EXPECT_EQ(DemoTokenizer().vocab_size(), 2048);
  EXPECT_EQ(RealTokenizer().IdOf("<｜User｜>"), 128803);
  EXPECT_EQ(DemoTokenizer().IdOf("<｜User｜>"), 3);
  EXPECT_EQ(RealTokenizer().IdOf(" "), 223);
  EXPECT_EQ(RealTokenizer().IdOf("<｜nobody｜>"), std::nullopt);
  EXPECT_EQ(RealTokenizer().IdOf(""), std::nullopt);
  EXPECT_TRUE(RealTokenizer().IsSpecial(1));
  EXPECT_FALSE(RealTokenizer().IsSpecial(128803));
  EXPECT_TRUE(RealTokenizer().IsAdded(128803));
  EXPECT_FALSE(RealTokenizer().IsAdded(223));
  for (const int32_t id : {-1, 129280, 2147483647}) {
    EXPECT_FALSE(RealTokenizer().IsSpecial(id));
    EXPECT_FALSE(RealTokenizer().IsAdded(id));
    EXPECT_THAT(RealTokenizer().TokenBytes(id),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("token id ", id))));
    EXPECT_THAT(RealTokenizer().DecodeBytes({5, id}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(TokenizerTest, HashTellsVocabulariesApart) {
  const std::string json = testing::ByteTokenizerJson();
  nlohmann::json edited = nlohmann::json::parse(json);
  ASSERT_OK_AND_ASSIGN(auto base, Tokenizer::Create(json));
  ASSERT_OK_AND_ASSIGN(auto again, Tokenizer::Create(json));
  EXPECT_EQ(base->vocabulary_hash(), again->vocabulary_hash());
  edited["model"]["vocab"]["ab"] = 256;
  ASSERT_OK_AND_ASSIGN(auto token, Tokenizer::Create(edited.dump()));
  EXPECT_NE(token->vocabulary_hash(), base->vocabulary_hash());
  edited["model"]["merges"] = {"a b"};
  ASSERT_OK_AND_ASSIGN(auto merge, Tokenizer::Create(edited.dump()));
  EXPECT_NE(merge->vocabulary_hash(), token->vocabulary_hash());
}

TEST(TokenizerTest, EmptyTextHasNoIds) {
  EXPECT_THAT(Encode(DemoTokenizer(), ""), IsEmpty());
  EXPECT_THAT(Encode(DemoTokenizer(), "", AddedTokens::kIgnore), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const std::string bytes,
                       DemoTokenizer().DecodeBytes({}));
  EXPECT_EQ(bytes, "");
}

TEST(TokenizerTest, InvalidUtf8IsRefusedWithItsOffset) {
  const std::vector<std::pair<std::string, int>> rows = {
      {"\xFF", 0},
      {"ab\x80", 2},
      {"a\xC3", 1},                // incomplete at the end
      {"\xED\xA0\x80", 0},         // surrogate
      {"ok \xC0\xAF", 3},          // overlong
      {"x\xF4\x90\x80\x80", 1},    // above U+10FFFF
      {"\xE4\xBD\xA0\xE5\xA5", 3}  // second of two characters cut
  };
  for (const auto& [text, offset] : rows) {
    EXPECT_THAT(DemoTokenizer().Encode(text, AddedTokens::kMatch),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("at byte ", offset, " "))));
  }
}

TEST(TokenizerTest, ControlLiteralsInUserTextStayOrdinaryText) {
  for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (!tokenizer->IsAdded(id)) continue;
      ASSERT_OK_AND_ASSIGN(const absl::string_view literal,
                           tokenizer->TokenBytes(id));
      EXPECT_THAT(Encode(*tokenizer, literal), ElementsAre(id));
      const std::string text = absl::StrCat("a", literal, "b");
      const Ids plain = Encode(*tokenizer, text, AddedTokens::kIgnore);
      for (const int32_t plain_id : plain) {
        EXPECT_FALSE(tokenizer->IsAdded(plain_id)) << literal;
      }
      ASSERT_OK_AND_ASSIGN(const std::string bytes,
                           tokenizer->DecodeBytes(plain));
      EXPECT_EQ(bytes, text);
    }
  }
}

TEST(TokenizerTest, TheLongestAddedTokenWinsAtEachPlace) {
  nlohmann::json json = nlohmann::json::parse(testing::ByteTokenizerJson());
  const auto add = [&json](int32_t id, const char* content, bool normalized) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", normalized},
                                    {"special", false}});
  };
  add(300, "ab", false);
  add(301, "abc", false);
  add(302, "bcd", false);
  add(303, "xa", true);  // second pass: never sees what the first one took
  ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Create(json.dump()));
  EXPECT_EQ(tokenizer->vocab_size(), 304);
  EXPECT_THAT(Encode(*tokenizer, "abcd"), ElementsAre(301, 'd'));
  EXPECT_THAT(Encode(*tokenizer, "abab"), ElementsAre(300, 300));
  EXPECT_THAT(Encode(*tokenizer, "bcdab"), ElementsAre(302, 300));
  EXPECT_THAT(Encode(*tokenizer, "xab"), ElementsAre('x', 300));
  EXPECT_THAT(Encode(*tokenizer, "xaxa"), ElementsAre(303, 303));
  // Ids 256..299 have no token.
  EXPECT_FALSE(tokenizer->Contains(256));
  EXPECT_THAT(tokenizer->TokenBytes(299),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A random text with all kinds of characters; valid UTF-8.
std::string RandomText(Random* random, int32_t characters) {
  static const std::vector<std::string> kPool = {"a",
                                                 "Z",
                                                 "the",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "7",
                                                 "42",
                                                 ".",
                                                 "!",
                                                 "'s",
                                                 "<",
                                                 "｜",
                                                 "▁",
                                                 "中",
                                                 "の",
                                                 "カ",
                                                 "é",
                                                 "я",
                                                 "ש",
                                                 "ال",
                                                 "ह",
                                                 "😀",
                                                 "🏽",
                                                 "\u200d",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "\u180e",
                                                 std::string(1, '\0'),
                                                 "<think>",
                                                 "</think>",
                                                 "<｜User｜>",
                                                 "｜DSML｜",
                                                 "²",
                                                 "①",
                                                 "。"};
  std::string out;
  for (int32_t i = 0; i < characters; ++i) {
    out += kPool[random->Uint64() % kPool.size()];
  }
  return out;
}

TEST(TokenizerTest, DecodingUndoesEncoding) {
  constexpr uint64_t kSeed = 7;
  SeededRandom random(kSeed);
  for (int32_t round = 0; round < 400; ++round) {
    const std::string text = RandomText(&random, round % 60);
    for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
      for (const AddedTokens added :
           {AddedTokens::kMatch, AddedTokens::kIgnore}) {
        ASSERT_OK_AND_ASSIGN(
            const std::string bytes,
            tokenizer->DecodeBytes(Encode(*tokenizer, text, added)));
        EXPECT_EQ(bytes, text) << "seed " << kSeed << " round " << round;
      }
    }
  }
}

TEST(TokenizerTest, TextOfOneWordOrOneRunIsNotQuadratic) {
  // One piece of 1 MB: quadratic merging would take hours, not the seconds of
  // the test's limit.
  constexpr size_t kBytes = size_t{1} << 20;
  const std::vector<std::string> units = {"a", "Donaudampf", " ",
                                          "\xE4\xB8\xAD"};
  for (const std::string& unit : units) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    const Ids ids = Encode(RealTokenizer(), text, AddedTokens::kMatch);
    ASSERT_OK_AND_ASSIGN(const std::string bytes,
                         RealTokenizer().DecodeBytes(ids));
    EXPECT_TRUE(bytes == text) << unit;
  }
}

TEST(TokenizerTest, ThreadsMayEncodeTogether) {
  constexpr uint64_t kSeed = 11;
  SeededRandom random(kSeed);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int32_t i = 0; i < 50; ++i) {
    texts.push_back(RandomText(&random, 40));
    expected.push_back(Encode(DemoTokenizer(), texts.back()));
  }
  std::vector<std::vector<Ids>> seen(4);
  std::vector<std::thread> threads;
  for (std::vector<Ids>& mine : seen) {
    threads.emplace_back([&mine, &texts] {
      for (const std::string& text : texts) {
        mine.push_back(Encode(DemoTokenizer(), text));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Ids>& mine : seen) EXPECT_EQ(mine, expected);
}

TEST(TokenizerTest, AMissingFileIsNamed) {
  EXPECT_THAT(Tokenizer::FromFile("/nonexistent/tokenizer.json"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/tokenizer.json")));
}

TEST(TokenizerTest, LoadsFromAFile) {
  ASSERT_OK_AND_ASSIGN(
      auto tokenizer,
      Tokenizer::FromFile(SourcePath("deploy/demo-model/tokenizer.json")));
  EXPECT_EQ(tokenizer->vocabulary_hash(), DemoTokenizer().vocabulary_hash());
}

}  // namespace
}  // namespace baton::tokenizer
