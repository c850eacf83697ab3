// Deterministic mutation fuzzing of everything here that reads foreign bytes:
// tokenizer.json, text to encode, ids and bytes to decode, stop strings, chats.
// Nothing may crash, and the properties of the headers must hold. The budget is
// a number of rounds, so every run does the same; the seed is in each failure.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/chat/chat_encoder.h"
#include "common/chat/control_tokens.h"
#include "common/tokenizer/incremental_decoder.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::tokenizer {
namespace {

using ::baton::testing::DemoTokenizer;

constexpr uint64_t kSeed = 20261129;
// Together one to two seconds, ten to twenty under AddressSanitizer.
constexpr int32_t kFileRounds = 8000;
constexpr int32_t kRounds = 30000;

size_t Below(Random* random, size_t n) {
  return static_cast<size_t>(random->Uint64() % n);
}

const std::vector<std::string>& Dictionary() {
  static const auto* const kWords = new std::vector<std::string>{
      "null",      "true",   "false",     "0",
      "-1",        "1e999",  "4194304",   "[]",
      "{}",        "\"\"",   "\\u0000",   "\\ud800",
      "(?",        "\\\\s",  "\\\\S",     "[^",
      "]",         "{,",     "(*",        "\"a b\"",
      "\"Regex\"", "\"id\"", "\"vocab\"", "18446744073709551615"};
  return *kWords;
}

// A few random edits: flipped, removed, doubled and inserted parts.
std::string Mutate(std::string text, Random* random) {
  const size_t edits = 1 + Below(random, 4);
  for (size_t i = 0; i < edits && !text.empty(); ++i) {
    const size_t at = Below(random, text.size());
    const size_t length = 1 + Below(random, 12);
    switch (Below(random, 5)) {
      case 0:
        text[at] = static_cast<char>(random->Uint64() & 0xFF);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, Dictionary()[Below(random, Dictionary().size())]);
        break;
      default:
        text.replace(at, length,
                     Dictionary()[Below(random, Dictionary().size())]);
        break;
    }
  }
  return text;
}

std::string RandomBytes(Random* random, size_t limit) {
  static const auto* const kParts = new std::vector<std::string>{
      "a",       "the ",     " ",         "\n",           "12",
      "<think>", chat::kBos, chat::kUser, "\xE4\xBD\xA0", "\xF0\x9F\x98\x80",
      "\xD7",    "\xE1\x80", "\x80",      "\xFF",         "\xED\xA0\x80",
      "!?"};
  std::string out;
  const size_t n = Below(random, limit);
  for (size_t i = 0; i < n; ++i) {
    if (Below(random, 8) == 0) {
      out.push_back(static_cast<char>(random->Uint64() & 0xFF));
    } else {
      out += (*kParts)[Below(random, kParts->size())];
    }
  }
  return out;
}

// A file small enough for thousands of rounds that still has every section.
std::string SmallFile() {
  std::string json = testing::ByteTokenizerJson();
  const auto replace = [&json](const std::string& from, const std::string& to) {
    const size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
  };
  replace("\"added_tokens\":[]",
          "\"added_tokens\":[{\"id\":300,\"content\":\"<x>\","
          "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
          "\"normalized\":false,\"special\":true}]");
  replace("\"merges\":[]", "\"merges\":[\"a b\",[\"ab\",\"c\"]]");
  replace("\"vocab\":{", "\"vocab\":{\"ab\":256,\"abc\":257,");
  replace("\"pretokenizers\":[",
          "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
          "\"[^\\\\r\\\\n\\\\p{L}]?[\\\\p{L}]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
          "\"behavior\":\"Isolated\",\"invert\":false},");
  return json;
}

TEST(TokenizerFuzz, MutatedFilesLoadOrAreRefused) {
  SeededRandom random(kSeed);
  const std::string base = SmallFile();
  ASSERT_TRUE(Tokenizer::Create(base).ok()) << Tokenizer::Create(base).status();
  // Most of the file is the list of bytes; aim two thirds of the edits at what
  // stands before it, and half of those at the pattern.
  const size_t vocab = base.find("\"vocab\"");
  const size_t pattern = base.find("[^");
  const size_t pattern_end = base.find("\"}", pattern);
  int32_t loaded = 0;
  for (int32_t round = 0; round < kFileRounds; ++round) {
    const size_t aim = Below(&random, 3);
    const size_t begin = aim == 2 ? pattern : 0;
    const size_t end =
        aim == 0 ? base.size() : (aim == 1 ? vocab : pattern_end);
    const std::string json = base.substr(0, begin) +
                             Mutate(base.substr(begin, end - begin), &random) +
                             base.substr(end);
    const auto tokenizer = Tokenizer::Create(json);
    if (!tokenizer.ok()) {
      ASSERT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument)
          << "seed " << kSeed << " round " << round << " "
          << tokenizer.status();
      continue;
    }
    ++loaded;
    const std::string text = ToValidUtf8(RandomBytes(&random, 20));
    const auto ids = (*tokenizer)->Encode(text, AddedTokens::kMatch);
    // A mutated pattern may give up; what succeeds must be lossless.
    if (!ids.ok()) continue;
    const auto bytes = (*tokenizer)->DecodeBytes(*ids);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_EQ(*bytes, text) << "seed " << kSeed << " round " << round;
  }
  // Both outcomes must be exercised for the test to mean anything.
  EXPECT_GT(loaded, kFileRounds / 100);
  EXPECT_LT(loaded, kFileRounds / 2);
}

TEST(TokenizerFuzz, TruncatedFilesAreRefused) {
  const std::string base = SmallFile();
  for (size_t n = 0; n < base.size(); n += 7) {
    ASSERT_FALSE(Tokenizer::Create(base.substr(0, n)).ok()) << n;
  }
}

TEST(TokenizerFuzz, RandomBytesEncodeExactlyWhenTheyAreUtf8) {
  SeededRandom random(kSeed + 1);
  for (int32_t round = 0; round < kRounds; ++round) {
    const std::string text = RandomBytes(&random, 40);
    const bool valid = !FirstInvalidUtf8(text).has_value();
    for (const AddedTokens added :
         {AddedTokens::kMatch, AddedTokens::kIgnore}) {
      const auto ids = DemoTokenizer().Encode(text, added);
      ASSERT_EQ(ids.ok(), valid) << "seed " << kSeed << " round " << round;
      if (!valid) continue;
      const auto bytes = DemoTokenizer().DecodeBytes(*ids);
      ASSERT_TRUE(bytes.ok());
      ASSERT_EQ(*bytes, text) << "seed " << kSeed << " round " << round;
    }
  }
}

TEST(TokenizerFuzz, DecodedDeltasAreValidAndLoseNothing) {
  SeededRandom random(kSeed + 2);
  for (int32_t round = 0; round < kRounds; ++round) {
    IncrementalDecoder decoder(&DemoTokenizer(), {});
    std::string all;
    std::string joined;
    const size_t n = Below(&random, 30);
    for (size_t i = 0; i < n; ++i) {
      if (Below(&random, 2) == 0) {
        const int32_t id = static_cast<int32_t>(Below(&random, 2100)) - 20;
        const auto bytes = DemoTokenizer().TokenBytes(id);
        const auto delta = decoder.Append(id);
        ASSERT_EQ(delta.ok(), bytes.ok()) << id;
        if (!delta.ok()) continue;
        absl::StrAppend(&all, *bytes);
        joined += *delta;
      } else {
        const std::string bytes = RandomBytes(&random, 4);
        all += bytes;
        joined += decoder.AppendBytes(bytes);
      }
      ASSERT_FALSE(FirstInvalidUtf8(joined).has_value());
      ASSERT_LE(decoder.held_bytes(), 3);
    }
    joined += decoder.Flush();
    ASSERT_EQ(joined, ToValidUtf8(all)) << "seed " << kSeed << " " << round;
  }
}

TEST(TokenizerFuzz, NoStopStringEverLeavesBeforeItsMatch) {
  SeededRandom random(kSeed + 3);
  for (int32_t round = 0; round < kRounds; ++round) {
    std::vector<std::string> stops;
    for (size_t i = Below(&random, 6); i > 0; --i) {
      stops.push_back(RandomBytes(&random, 4) + "a");
    }
    auto set = StopSet::Create(stops);
    ASSERT_TRUE(set.ok());
    StopMatcher matcher(*set);
    std::string output;
    int64_t safe = 0;
    for (size_t i = Below(&random, 12); i > 0; --i) {
      const std::string piece = RandomBytes(&random, 5);
      matcher.Push(piece);
      if (!matcher.match().has_value() ||
          output.size() < static_cast<size_t>(matcher.match()->end)) {
        output += piece;
      }
      ASSERT_GE(matcher.safe_bytes(), safe);
      safe = matcher.safe_bytes();
      const std::string sent = output.substr(0, static_cast<size_t>(safe));
      for (const std::string& stop : stops) {
        ASSERT_EQ(sent.find(stop), std::string::npos)
            << "seed " << kSeed << " round " << round;
      }
    }
    bool contains = false;
    for (const std::string& stop : stops) {
      contains |= output.find(stop) != std::string::npos;
    }
    ASSERT_EQ(matcher.match().has_value(), contains)
        << "seed " << kSeed << " round " << round;
  }
}

TEST(TokenizerFuzz, RandomChatsAreRefusedOrEndWithAnOpening) {
  SeededRandom random(kSeed + 4);
  const auto created = chat::ChatEncoder::Create(&DemoTokenizer(), {});
  ASSERT_TRUE(created.ok()) << created.status();
  const chat::ChatEncoder& encoder = **created;
  const int32_t open = *DemoTokenizer().IdOf(chat::kThinkOpen);
  const int32_t close = *DemoTokenizer().IdOf(chat::kThinkClose);
  int32_t accepted = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    chat::Conversation conversation;
    conversation.thinking_mode = Below(&random, 2) == 0
                                     ? chat::ThinkingMode::kChat
                                     : chat::ThinkingMode::kThinking;
    conversation.drop_thinking = Below(&random, 2) == 0;
    for (size_t i = Below(&random, 6); i > 0; --i) {
      chat::Message message;
      message.role = static_cast<chat::Role>(Below(&random, 6));
      message.content = RandomBytes(&random, 6);
      if (Below(&random, 4) != 0)
        message.content = ToValidUtf8(message.content);
      if (message.role == chat::Role::kAssistant && Below(&random, 2) == 0) {
        message.tool_calls = {
            {"1", "f", ToValidUtf8(Mutate("{\"a\":[1,2.5,\"x\"]}", &random))}};
      }
      if (message.role == chat::Role::kTool) message.tool_call_id = "1";
      conversation.messages.push_back(std::move(message));
    }
    const auto ids = encoder.EncodeChat(conversation);
    const auto text = encoder.RenderChat(conversation);
    ASSERT_EQ(ids.ok(), text.ok());
    if (!ids.ok()) continue;
    ++accepted;
    ASSERT_TRUE(ids->back() == open || ids->back() == close)
        << "seed " << kSeed << " round " << round;
    const auto bytes = DemoTokenizer().DecodeBytes(*ids);
    ASSERT_TRUE(bytes.ok());
    ASSERT_EQ(*bytes, *text);
  }
  EXPECT_GT(accepted, 200);
}

}  // namespace
}  // namespace baton::tokenizer
