#include "common/chat/chat_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/chat/control_tokens.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"
#include "tests/common/tokenizer/test_tokenizers.h"

namespace baton::chat {
namespace {

using ::baton::testing::DemoTokenizer;
using ::baton::testing::RealTokenizer;
using ::baton::testing::StatusIs;
using ::testing::HasSubstr;
using tokenizer::AddedTokens;
using tokenizer::Tokenizer;
using Ids = std::vector<int32_t>;

std::unique_ptr<ChatEncoder> Encoder(const Tokenizer& tokenizer,
                                     ChatOptions options = {}) {
  auto encoder = ChatEncoder::Create(&tokenizer, std::move(options));
  EXPECT_TRUE(encoder.ok()) << encoder.status();
  return *std::move(encoder);
}

Message System(std::string text) { return {Role::kSystem, std::move(text)}; }
Message User(std::string text, std::string task = "") {
  Message message{Role::kUser, std::move(text)};
  message.task = std::move(task);
  return message;
}
Message Assistant(std::string text, std::string reasoning = "",
                  std::vector<ToolCall> calls = {}) {
  return {Role::kAssistant, std::move(text), std::move(reasoning),
          std::move(calls)};
}
Message Tool(std::string id, std::string text) {
  Message message{Role::kTool, std::move(text)};
  message.tool_call_id = std::move(id);
  return message;
}

constexpr ThinkingMode kChat = ThinkingMode::kChat;
constexpr ThinkingMode kThinking = ThinkingMode::kThinking;

struct Row {
  const char* name;
  Conversation conversation;
  std::string text;
};

Conversation Make(ThinkingMode mode, std::vector<Message> messages) {
  Conversation conversation;
  conversation.messages = std::move(messages);
  conversation.thinking_mode = mode;
  return conversation;
}

Conversation KeepThinking(Conversation conversation) {
  conversation.drop_thinking = false;
  return conversation;
}

Conversation Continue(Conversation conversation) {
  conversation.continue_final_message = true;
  return conversation;
}

// model.md A6, all rows.
std::vector<Row> PublishedRows() {
  const std::vector<Message> three = {User("A"), Assistant("B", "R"),
                                      User("C")};
  return {
      {"system, user, chat", Make(kChat, {System("S"), User("A")}),
       "<｜begin▁of▁sentence｜>S<｜User｜>A<｜Assistant｜></think>"},
      {"system, user, thinking", Make(kThinking, {System("S"), User("A")}),
       "<｜begin▁of▁sentence｜>S<｜User｜>A<｜Assistant｜><think>"},
      {"three turns, chat", Make(kChat, {User("A"), Assistant("B"), User("C")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>B"
       "<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜></think>"},
      {"three turns, thinking", Make(kThinking, three),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>B"
       "<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜><think>"},
      {"three turns, reasoning kept", KeepThinking(Make(kThinking, three)),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜><think>R</think>B"
       "<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜><think>"},
      {"tool call",
       Make(kChat,
            {User("A"),
             Assistant("", "",
                       {{"1", "f", "{\"x\":\"v\",\"n\":3,\"l\":[1,2]}"}}),
             Tool("1", "OUT"), User("D")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>\n\n"
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
       "<｜DSML｜parameter name=\"x\" string=\"true\">v</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"n\" string=\"false\">3</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"l\" string=\"false\">[1, 2]"
       "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
       "<｜end▁of▁sentence｜><｜User｜><tool_result>OUT</tool_result>\n\nD"
       "<｜Assistant｜></think>"},
      {"reminder",
       Make(kChat,
            {System("S"), Message{Role::kLatestReminder, "LR"}, User("A")}),
       "<｜begin▁of▁sentence｜>S<｜latest_reminder｜>LR<｜User｜>A"
       "<｜Assistant｜></think>"},
      {"task title", Make(kChat, {User("A", "title")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜title｜>"},
      {"task action", Make(kChat, {User("A", "action")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think><｜action｜>"},
  };
}

// model.md 8.2, what A6 does not show.
std::vector<Row> FurtherRows() {
  const Message developer{Role::kDeveloper, "V"};
  const std::vector<ToolCall> two = {{"1", "f", "{}"}, {"2", "g", "no json"}};
  return {
      {"user only", Make(kChat, {User("")}),
       "<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜></think>"},
      {"user messages merge", Make(kChat, {User("A"), User("B")}),
       "<｜begin▁of▁sentence｜><｜User｜>A\n\nB<｜Assistant｜></think>"},
      {"a task ends its turn",
       Make(kChat, {User("A", "query"), Assistant("Q"), User("B")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜query｜>Q<｜end▁of▁sentence｜>"
       "<｜User｜>B<｜Assistant｜></think>"},
      {"the answer of a task has no reasoning",
       KeepThinking(Make(
           kThinking, {User("A", "action"), Assistant("Q", "R"), User("B")})),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜><think><｜action｜>Q"
       "<｜end▁of▁sentence｜><｜User｜>B<｜Assistant｜><think>"},
      {"results follow the order of the calls",
       Make(kChat, {User("A"), Assistant("x", "", two), Tool("2", "G"),
                    Tool("1", "F")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>x\n\n"
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n"
       "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n"
       "<｜DSML｜parameter name=\"arguments\" string=\"true\">no json"
       "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
       "<｜end▁of▁sentence｜><｜User｜><tool_result>F</tool_result>\n\n"
       "<tool_result>G</tool_result><｜Assistant｜></think>"},
      {"reasoning after the last user is kept, its tool result is a user",
       Make(kThinking, {User("A"), Assistant("", "R", {{"1", "f", "{}"}}),
                        Tool("1", "F")}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>\n\n"
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n"
       "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜>"
       "<tool_result>F</tool_result><｜Assistant｜><think>"},
      {"old developer messages go with old reasoning",
       Make(kThinking, {developer, Assistant("B", "R"), User("C")}),
       "<｜begin▁of▁sentence｜>B<｜end▁of▁sentence｜><｜User｜>C"
       "<｜Assistant｜><think>"},
      {"a developer message is kept in chat mode",
       Make(kChat, {developer, Assistant("B"), User("C")}),
       "<｜begin▁of▁sentence｜><｜User｜>V<｜Assistant｜></think>B"
       "<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜></think>"},
      {"the last developer message opens thinking",
       Make(kThinking, {User("A"), developer}),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜User｜>V<｜Assistant｜><think>"},
      {"a last system message still opens the answer",
       Make(kThinking, {User("A"), System("S")}),
       "<｜begin▁of▁sentence｜><｜User｜>AS<｜Assistant｜><think>"},
      {"system alone", Make(kChat, {System("S")}),
       "<｜begin▁of▁sentence｜>S<｜Assistant｜></think>"},
      {"continued", Continue(Make(kChat, {User("A"), Assistant("B")})),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜></think>B"},
      {"continued after reasoning",
       Continue(Make(kThinking, {User("A"), Assistant("B", "R")})),
       "<｜begin▁of▁sentence｜><｜User｜>A<｜Assistant｜><think>R</think>B"},
  };
}

TEST(ChatEncoderTest, RendersThePublishedRows) {
  const auto encoder = Encoder(RealTokenizer());
  for (const Row& row : PublishedRows()) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         encoder->RenderChat(row.conversation));
    EXPECT_EQ(text, row.text) << row.name;
  }
}

TEST(ChatEncoderTest, RendersTheRestOfTheFormat) {
  const auto encoder = Encoder(RealTokenizer());
  for (const Row& row : FurtherRows()) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         encoder->RenderChat(row.conversation));
    EXPECT_EQ(text, row.text) << row.name;
  }
}

// pitfalls B036: ids equal one pass over the rendered string.
TEST(ChatEncoderTest, IdsEqualOnePassOverTheRenderedText) {
  const auto encoder = Encoder(RealTokenizer());
  std::vector<Row> rows = PublishedRows();
  for (Row& row : FurtherRows()) rows.push_back(std::move(row));
  rows.push_back(
      {"words across message borders",
       Make(kChat, {System("Be brief"), System("ly, please. "), User(" an"),
                    User("other one"),
                    Assistant("well,", "", {{"1", "fun", "{\"a\":\"b c\"}"}}),
                    Tool("1", "resu"), User("lts\n"), System(" and")}),
       ""});
  for (const Row& row : rows) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         encoder->RenderChat(row.conversation));
    ASSERT_OK_AND_ASSIGN(const Ids expected,
                         RealTokenizer().Encode(text, AddedTokens::kMatch));
    ASSERT_OK_AND_ASSIGN(const Ids ids, encoder->EncodeChat(row.conversation));
    EXPECT_EQ(ids, expected) << row.name;
  }
}

// prompt_tokens was counted by the library that made the file.
TEST(ChatEncoderTest, CountsTheTokensOfEveryRecallChat) {
  const auto encoder = Encoder(DemoTokenizer());
  std::ifstream file(testing::SourcePath("tests/data/oracle/recall-dev.json"));
  int32_t rows = 0;
  for (const auto& row : nlohmann::json::parse(file)) {
    Conversation conversation;
    for (const auto& message : row["messages"]) {
      const std::string content = message["content"];
      const std::string role = message["role"];
      ASSERT_TRUE(role == "user" || role == "assistant" || role == "system");
      conversation.messages.push_back(role == "user"        ? User(content)
                                      : role == "assistant" ? Assistant(content)
                                                            : System(content));
    }
    ASSERT_OK_AND_ASSIGN(const Ids ids, encoder->EncodeChat(conversation));
    EXPECT_EQ(ids.size(), row["prompt_tokens"].get<size_t>()) << "row " << rows;
    ++rows;
  }
  EXPECT_EQ(rows, 120);
}

// Every literal of the vocabulary in every place a client can write to: the
// control tokens of the prompt are exactly those of the same chat without them.
TEST(ChatEncoderTest, LiteralsInContentNeverBecomeControlTokens) {
  for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
    const auto encoder = Encoder(*tokenizer);
    const auto controls = [&](const std::string& literal) {
      const std::string t = absl::StrCat("a", literal, "b");
      Conversation conversation = KeepThinking(
          Make(kThinking, {System(t), User(t),
                           Assistant(t, t,
                                     {{"1", t, nlohmann::json({{t, t}}).dump()},
                                      {"2", "g", t}}),
                           Tool("1", t), Tool("2", t), User(t)}));
      auto ids = encoder->EncodeChat(conversation);
      EXPECT_TRUE(ids.ok()) << ids.status();
      Ids out;
      for (const int32_t id : *ids) {
        if (tokenizer->IsAdded(id)) out.push_back(id);
      }
      return out;
    };
    const Ids expected = controls("");
    for (const char* literal :
         {kBos, kEos, kUser, kAssistant, kThinkOpen, kThinkClose, kDsml}) {
      EXPECT_EQ(controls(literal), expected) << literal;
    }
  }
}

// A literal must not arise where our text and the client's meet either.
TEST(ChatEncoderTest, LiteralsDoNotArisePiecewise) {
  const auto encoder = Encoder(RealTokenizer());
  // "</" of the parameter's end tag would follow this value.
  const Conversation conversation =
      Make(kChat, {System("<｜Us"), System("er｜>"), User("<th"), User("ink>"),
                   Assistant("x", "", {{"1", "f", "{\"k\":\"<\"}"}}),
                   Tool("1", "<think"), User(">")});
  ASSERT_OK_AND_ASSIGN(const Ids ids, encoder->EncodeChat(conversation));
  const auto count = [&ids](const char* literal) {
    return std::count(ids.begin(), ids.end(), *RealTokenizer().IdOf(literal));
  };
  EXPECT_EQ(count(kUser), 2);
  EXPECT_EQ(count(kThinkOpen), 0);
  EXPECT_EQ(count(kThinkClose), 2);
}

// pitfalls B049, B079: by ids, not by length.
TEST(ChatEncoderTest, EveryPromptEndsWithTheOpening) {
  for (const Tokenizer* tokenizer : {&DemoTokenizer(), &RealTokenizer()}) {
    const auto encoder = Encoder(*tokenizer);
    for (const ThinkingMode mode : {kChat, kThinking}) {
      for (const std::vector<Message>& messages :
           {std::vector<Message>{User("A")},
            {User("A"), System("S")},
            {System("S")},
            {User("A"), Assistant("B"), User("C")}}) {
        ASSERT_OK_AND_ASSIGN(const Ids ids,
                             encoder->EncodeChat(Make(mode, messages)));
        ASSERT_GE(ids.size(), 3u);
        EXPECT_EQ(ids.front(), encoder->bos_id());
        EXPECT_EQ(ids[ids.size() - 2], tokenizer->IdOf(kAssistant));
        EXPECT_EQ(ids.back(),
                  tokenizer->IdOf(mode == kChat ? kThinkClose : kThinkOpen));
      }
    }
  }
}

TEST(ChatEncoderTest, RefusesConversationsThatMakeNoSense) {
  struct Bad {
    const char* name;
    Conversation conversation;
    const char* message;
  };
  Conversation tools = Make(kChat, {User("A")});
  tools.tools_json = "[{\"name\":\"f\"}]";
  Message user_with_calls = User("A");
  user_with_calls.tool_calls = {{"1", "f", "{}"}};
  Message user_with_reasoning = User("A");
  user_with_reasoning.reasoning = "R";
  Message user_with_call_id = User("A");
  user_with_call_id.tool_call_id = "1";
  Message system_with_task = System("A");
  system_with_task.task = "title";
  const std::vector<ToolCall> call = {{"1", "f", "{}"}};
  const std::vector<Bad> rows = {
      {"no messages", Make(kChat, {}), "no messages"},
      {"tools", tools, "tools are not supported by this version"},
      {"unknown role", Make(kChat, {User("A"), Message{}}),
       "message 1: unknown role"},
      {"assistant last", Make(kChat, {User("A"), Assistant("B")}),
       "message 1: the last message is from the assistant"},
      {"reminder last",
       Make(kChat, {User("A"), Message{Role::kLatestReminder, "L"}}),
       "message 1: the last message is a latest_reminder"},
      {"nothing to continue", Continue(Make(kChat, {User("A")})),
       "continue_final_message"},
      {"result without any call", Make(kChat, {Tool("1", "x")}),
       "message 0: tool_call_id '1'"},
      {"result of another call",
       Make(kChat, {User("A"), Assistant("", "", call), Tool("2", "x")}),
       "message 2: tool_call_id '2'"},
      {"result without id",
       Make(kChat,
            {User("A"), Assistant("", "", {{"", "f", "{}"}}), Tool("", "x")}),
       "message 2: tool_call_id ''"},
      {"result twice",
       Make(kChat, {User("A"), Assistant("", "", call), Tool("1", "x"),
                    Tool("1", "y")}),
       "message 3: tool_call_id '1'"},
      {"calls of one id",
       Make(kChat,
            {User("A"), Assistant("", "", {{"1", "f", "{}"}, {"1", "g", "{}"}}),
             User("B")}),
       "message 1: two tool calls"},
      {"call without name",
       Make(kChat,
            {User("A"), Assistant("", "", {{"1", "", "{}"}}), Tool("1", "x")}),
       "message 1: a tool call has no name"},
      {"calls on a user", Make(kChat, {user_with_calls}),
       "message 0: tool_calls on a user"},
      {"reasoning on a user", Make(kChat, {user_with_reasoning}),
       "message 0: reasoning on a user"},
      {"call id on a user", Make(kChat, {user_with_call_id}),
       "message 0: tool_call_id on a user"},
      {"task on a system message", Make(kChat, {system_with_task}),
       "message 0: task on a system"},
      {"unknown task", Make(kChat, {User("A", "dance")}),
       "unknown task 'dance'"},
      {"task that would be lost", Make(kChat, {User("A"), User("B", "title")}),
       "message 1: a task"},
      {"result after a task",
       Make(kChat, {User("A"), Assistant("", "", call), User("B", "title"),
                    Tool("1", "x")}),
       "message 3: a tool message follows"},
      {"empty developer message", Make(kChat, {{Role::kDeveloper, ""}}),
       "message 0: a developer message needs content"},
      {"invalid content", Make(kChat, {User("A"), User("ab\xFF")}),
       "message 1: content is not valid UTF-8 at byte 2"},
      {"invalid reasoning",
       Make(kThinking, {User("A"), Assistant("B", "\x80"), User("C")}),
       "message 1: reasoning is not valid UTF-8 at byte 0"},
      {"invalid arguments",
       Make(kChat, {User("A"), Assistant("", "", {{"1", "f", "{\xC3}"}}),
                    Tool("1", "x")}),
       "message 1: tool call arguments is not valid UTF-8"},
      {"arguments too deep",
       Make(kChat, {User("A"),
                    Assistant("", "",
                              {{"1", "f", "{\"a\":" + std::string(1000, '[')}}),
                    Tool("1", "x")}),
       "nested deeper"},
  };
  const auto encoder = Encoder(RealTokenizer());
  for (const Bad& row : rows) {
    EXPECT_THAT(
        encoder->EncodeChat(row.conversation),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.name;
  }
}

TEST(ChatEncoderTest, TokensThatThisModelLacksAreNamed) {
  const auto encoder = Encoder(DemoTokenizer());
  EXPECT_THAT(encoder->EncodeChat(Make(kChat, {User("A", "title")})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("<｜title｜>")));
  EXPECT_THAT(encoder->EncodeChat(Make(
                  kChat, {Message{Role::kLatestReminder, "L"}, User("A")})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("<｜latest_reminder｜>")));
}

TEST(ChatEncoderTest, ATokenizerWithoutAControlTokenIsRefusedByName) {
  nlohmann::json json = nlohmann::json::parse(testing::DemoTokenizerJson());
  auto& added = json["added_tokens"];
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i]["content"] == kAssistant) added.erase(i);
  }
  json["model"]["vocab"].erase(kAssistant);
  ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Create(json.dump()));
  EXPECT_THAT(
      ChatEncoder::Create(tokenizer.get(), {}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(kAssistant)));
}

TEST(ChatEncoderTest, EffortsThatNeedAPrefixTextAreRefusedWithoutIt) {
  const auto status = [](EffortRelease release, ThinkingMode mode,
                         ReasoningEffort effort) {
    const auto encoder = Encoder(RealTokenizer(), {.effort_release = release});
    Conversation conversation = Make(mode, {User("A")});
    conversation.reasoning_effort = effort;
    return encoder->EncodeChat(conversation).status();
  };
  using enum EffortRelease;
  using enum ReasoningEffort;
  for (const ReasoningEffort effort : {kUnspecified, kLow, kHigh, kMax}) {
    // No effect in chat mode.
    EXPECT_OK(status(kPreview, kChat, effort));
    EXPECT_OK(status(k0731, kChat, effort));
  }
  for (const ReasoningEffort effort : {kUnspecified, kLow, kHigh}) {
    EXPECT_OK(status(kPreview, kThinking, effort));
  }
  EXPECT_OK(status(k0731, kThinking, kUnspecified));
  EXPECT_OK(status(k0731, kThinking, kLow));
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("needs the prefix text"));
  EXPECT_THAT(status(kPreview, kThinking, kMax), refused);
  EXPECT_THAT(status(k0731, kThinking, kHigh), refused);
  EXPECT_THAT(status(k0731, kThinking, kMax), refused);
}

TEST(ChatEncoderTest, AWrongPrefixTextIsRefusedAtStart) {
  EXPECT_THAT(ChatEncoder::Create(&RealTokenizer(),
                                  {.max_effort_prefix = "Think hard.\n\n"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reasoning effort max has SHA-256")));
  EXPECT_THAT(ChatEncoder::Create(&RealTokenizer(),
                                  {.effort_release = EffortRelease::k0731,
                                   .high_effort_prefix = ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reasoning effort high has SHA-256")));
}

}  // namespace
}  // namespace baton::chat
