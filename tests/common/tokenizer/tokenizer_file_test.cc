#include "common/tokenizer/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "common/testing/status_matchers.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Base() { return Json::parse(testing::ByteTokenizerJson()); }

TEST(TokenizerFileTest, AcceptsTheSmallestFile) {
  ASSERT_OK_AND_ASSIGN(const TokenizerSpec spec,
                       ParseTokenizerJson(Base().dump()));
  EXPECT_EQ(spec.tokens.size(), 256u);
  EXPECT_EQ(spec.byte_ids[65], 65);
}

TEST(TokenizerFileTest, ReadsMergesInBothForms) {
  Json json = Base();
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["vocab"]["abc"] = 257;
  json["model"]["merges"] = {"a b", Json::array({"ab", "c"})};
  ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Create(json.dump()));
  ASSERT_OK_AND_ASSIGN(const auto ids,
                       tokenizer->Encode("abcab", AddedTokens::kMatch));
  EXPECT_THAT(ids, ElementsAre(257, 256));
}

struct Edit {
  const char* name;
  std::function<void(Json&)> apply;
  const char* message;  // part of the refusal
};

Json Added() {
  return {{"id", 256},       {"content", "<x>"}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},  {"normalized", false},
          {"special", true}};
}

TEST(TokenizerFileTest, RefusesWhatItDoesNotImplementByName) {
  const std::vector<Edit> edits = {
      {"version", [](Json& j) { j["version"] = "2.0"; }, "version"},
      {"unknown field", [](Json& j) { j["extra"] = 1; }, "'extra'"},
      {"truncation",
       [](Json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       "truncation"},
      {"padding",
       [](Json& j) {
         j["padding"] = {{"pad_id", 0}};
       },
       "padding"},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       },
       "normalizer.type = \"NFC\""},
      {"normalizer in a sequence",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}}}};
       },
       "normalizer.normalizers"},
      {"template",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       "TemplateProcessing"},
      {"decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "WordPiece"},
      {"no decoder", [](Json& j) { j["decoder"] = nullptr; }, "decoder"},
      {"pre-tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; },
       "pre_tokenizer"},
      {"no stages",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"] = Json::array(); },
       "pretokenizers"},
      {"other stage",
       [](Json& j) {
         auto& list = j["pre_tokenizer"]["pretokenizers"];
         list.insert(list.begin(), Json{{"type", "Whitespace"}});
       },
       "stage 0.type = \"Whitespace\""},
      {"prefix space",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["add_prefix_space"] = true;
       },
       "add_prefix_space"},
      {"byte-level regex",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["use_regex"] = true;
       },
       "use_regex"},
      {"byte-level regex by default",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][0].erase("use_regex");
       },
       "use_regex"},
      {"model type", [](Json& j) { j["model"]["type"] = "Unigram"; },
       "model.type = \"Unigram\""},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; },
       "model.dropout"},
      {"unk", [](Json& j) { j["model"]["unk_token"] = "<unk>"; },
       "model.unk_token"},
      {"prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "#"; },
       "continuing_subword_prefix"},
      {"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "@"; },
       "end_of_word_suffix"},
      {"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; },
       "byte_fallback"},
      {"ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = true; },
       "ignore_merges"},
      {"flag of a wrong type",
       [](Json& j) { j["model"]["byte_fallback"] = "no"; }, "boolean"},
      {"empty vocabulary",
       [](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab"},
      {"byte without a token", [](Json& j) { j["model"]["vocab"].erase("A"); },
       "byte 65"},
      {"id twice", [](Json& j) { j["model"]["vocab"]["ab"] = 65; }, "id 65"},
      {"negative id", [](Json& j) { j["model"]["vocab"]["ab"] = -1; }, "-1"},
      {"huge id", [](Json& j) { j["model"]["vocab"]["ab"] = 1 << 30; },
       "1073741824"},
      {"id beyond int64",
       [](Json& j) { j["model"]["vocab"]["ab"] = 18446744073709551615u; },
       "18446744073709551615"},
      {"fractional id", [](Json& j) { j["model"]["vocab"]["ab"] = 256.5; },
       "256.5"},
      {"text outside the alphabet",
       [](Json& j) { j["model"]["vocab"]["中"] = 256; }, "alphabet"},
      {"merge of an unknown token",
       [](Json& j) { j["model"]["merges"] = {"a b"}; }, "needs 'ab'"},
      {"merge without a space", [](Json& j) { j["model"]["merges"] = {"ab"}; },
       "model.merges 0"},
      {"merge of three", [](Json& j) { j["model"]["merges"] = {"a b c"}; },
       "model.merges 0"},
      {"merge twice",
       [](Json& j) {
         j["model"]["vocab"]["ab"] = 256;
         j["model"]["merges"] = {"a b", "a b"};
       },
       "model.merges 1 repeats"},
      {"merge into a control token",
       [](Json& j) {
         j["model"]["vocab"]["ab"] = 256;
         j["model"]["merges"] = {"a b"};
         Json token = Added();
         token["content"] = "ab";
         j["added_tokens"] = {token};
       },
       "added token 'ab'"},
      {"added token strips",
       [](Json& j) {
         Json token = Added();
         token["lstrip"] = true;
         j["added_tokens"] = {token};
       },
       "lstrip"},
      {"added token is empty",
       [](Json& j) {
         Json token = Added();
         token["content"] = "";
         j["added_tokens"] = {token};
       },
       "content"},
      {"added token twice",
       [](Json& j) {
         Json token = Added();
         token["id"] = 257;
         j["added_tokens"] = {Added(), token};
       },
       "listed twice"},
      {"added token takes an id",
       [](Json& j) {
         Json token = Added();
         token["id"] = 65;
         j["added_tokens"] = {token};
       },
       "id 65"},
      {"added token disagrees with the vocabulary",
       [](Json& j) {
         Json token = Added();
         token["content"] = "A";
         j["added_tokens"] = {token};
       },
       "model.vocab gives it 65"},
  };
  for (const Edit& edit : edits) {
    Json json = Base();
    edit.apply(json);
    EXPECT_THAT(
        Tokenizer::Create(json.dump()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(edit.message)))
        << edit.name;
  }
}

TEST(TokenizerFileTest, RefusesSplitStagesThatItDoesNotImplement) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "a+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const std::vector<Edit> edits = {
      {"behavior", [](Json& s) { s["behavior"] = "Removed"; }, "behavior"},
      {"invert", [](Json& s) { s["invert"] = true; }, "invert"},
      {"string",
       [](Json& s) {
         s["pattern"] = {{"String", "a"}};
       },
       "String"},
      {"syntax", [](Json& s) { s["pattern"]["Regex"] = "(a"; },
       "does not compile"},
      {"empty match", [](Json& s) { s["pattern"]["Regex"] = "a*"; },
       "empty string"},
  };
  for (const Edit& edit : edits) {
    Json json = Base();
    Json stage = split;
    edit.apply(stage);
    auto& list = json["pre_tokenizer"]["pretokenizers"];
    list.insert(list.begin(), stage);
    EXPECT_THAT(
        Tokenizer::Create(json.dump()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(edit.message)))
        << edit.name;
  }
}

TEST(TokenizerFileTest, TextThatIsNotJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "\xFF"}) {
    EXPECT_THAT(ParseTokenizerJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(TokenizerFileTest, DeepNestingIsRefusedWithoutRecursion) {
  Json json = Base();
  json["normalizer"] = "@@@";
  std::string text = json.dump();
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  text.replace(text.find("\"@@@\""), 5, deep);
  EXPECT_THAT(
      ParseTokenizerJson(text),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("normalizer")));
}

}  // namespace
}  // namespace baton::tokenizer
