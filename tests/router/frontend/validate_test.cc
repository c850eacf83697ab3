#include "router/frontend/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/request/request.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"
#include "router/frontend/model_facts.h"
#include "router/frontend/request_parser.h"

namespace baton::router::frontend {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;
using ::testing::HasSubstr;

constexpr int32_t kContext = 4096;

// The demo model's tokenizer is read once for all tests.
struct Model {
  ModelFacts facts;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<chat::ChatEncoder> encoder;
};
const Model& DemoModel() {
  static const Model* const model = [] {
    const std::string dir = baton::testing::SourcePath("deploy/demo-model");
    auto* const out = new Model;
    out->facts = *ReadModelFacts(dir);
    out->tokenizer = *tokenizer::Tokenizer::FromFile(dir + "/tokenizer.json");
    out->encoder = *chat::ChatEncoder::Create(out->tokenizer.get(), {});
    return out;
  }();
  return *model;
}

class ValidateTest : public ::testing::Test {
 protected:
  ValidateTest() : random_(3) {}

  absl::StatusOr<dispatch::RequestSpec> Make(
      const v1::GenerateRequest& request) {
    const Validator validator(DemoModel().facts, limits_,
                              DemoModel().tokenizer.get(),
                              DemoModel().encoder.get(), &random_);
    return validator.MakeSpec(request, workers_);
  }
  void AddDecode(int32_t blocks, int32_t slots, int64_t max_positions) {
    auto identity = std::make_shared<registry::WorkerIdentity>();
    identity->name = "d";
    identity->decode = true;
    identity->blocks = blocks;
    identity->slots = slots;
    identity->max_positions = max_positions;
    registry::WorkerView view;
    view.identity = identity;
    view.state = registry::WorkerState::kServing;
    workers_.push_back(view);
  }
  static v1::GenerateRequest Ids(int count) {
    v1::GenerateRequest request;
    for (int i = 0; i < count; ++i) request.mutable_token_ids()->add_ids(7);
    return request;
  }

  SeededRandom random_;
  RequestLimits limits_;
  registry::Snapshot workers_;
};

TEST_F(ValidateTest, WithoutATokenizerServesTokenIdsOnly) {
  const Validator validator(DemoModel().facts, limits_, /*tokenizer=*/nullptr,
                            /*chat_encoder=*/nullptr, &random_);
  EXPECT_OK(validator.MakeSpec(Ids(3), workers_));
  v1::GenerateRequest bad = Ids(3);
  bad.mutable_token_ids()->add_ids(2048);
  EXPECT_THAT(validator.MakeSpec(bad, workers_),
              StatusIs(absl::StatusCode::kInvalidArgument));
  v1::GenerateRequest text;
  text.set_prompt("Hello");
  v1::GenerateRequest chat;
  chat.mutable_chat()->add_messages()->set_role(v1::ROLE_USER);
  for (const v1::GenerateRequest& request : {text, chat}) {
    const auto spec = validator.MakeSpec(request, workers_);
    EXPECT_THAT(spec, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("expected token_ids")));
    EXPECT_EQ(request::InfoOf(spec.status()).reason, ErrorReason::kUnsupported);
  }
}

struct BadInput {
  const char* name;
  std::function<void(v1::GenerateRequest*)> change;  // of a good request
  ErrorReason reason;
  const char* field;
  const char* message;
};

void AddMessage(v1::GenerateRequest* request, int role, const char* text) {
  v1::Message* const message = request->mutable_chat()->add_messages();
  message->set_role(static_cast<v1::Role>(role));
  message->set_content(text);
}

const std::vector<BadInput>& BadInputs() {
  using R = v1::GenerateRequest;
  constexpr ErrorReason kField = ErrorReason::kInvalidField;
  static const auto* const cases = new std::vector<BadInput>{
      {"no_input", [](R* r) { r->clear_token_ids(); }, kField, "input",
       "expected prompt, token_ids or chat"},
      {"empty_prompt", [](R* r) { r->set_prompt(""); }, kField, "prompt",
       "empty"},
      {"no_ids", [](R* r) { r->mutable_token_ids()->clear_ids(); }, kField,
       "token_ids", "empty"},
      {"no_messages", [](R* r) { r->mutable_chat(); }, kField, "chat.messages",
       "at least one"},
      {"prompt_too_many_bytes",
       [](R* r) { r->set_prompt(std::string((8 << 20) + 1, 'a')); }, kField,
       "prompt", "at most 8388608"},
      {"unknown_id", [](R* r) { r->mutable_token_ids()->add_ids(2048); },
       kField, "token_ids", "unknown token id 2048"},
      {"negative_id", [](R* r) { r->mutable_token_ids()->add_ids(-1); }, kField,
       "token_ids", "unknown token id -1"},
      {"tools",
       [](R* r) {
         AddMessage(r, v1::ROLE_USER, "hi");
         r->mutable_chat()->set_tools_json("[]");
       },
       ErrorReason::kUnsupported, "chat.tools_json", "tools"},
      {"unknown_role", [](R* r) { AddMessage(r, 99, "hi"); }, kField,
       "chat.messages[0].role", "99"},
      {"unspecified_role", [](R* r) { AddMessage(r, 0, "hi"); }, kField,
       "chat.messages[0].role", "expected ROLE_SYSTEM"},
      {"bad_effort",
       [](R* r) {
         AddMessage(r, v1::ROLE_USER, "hi");
         r->mutable_chat()->set_reasoning_effort("much");
       },
       kField, "chat.reasoning_effort", "'much'"},
      {"bad_thinking_mode",
       [](R* r) {
         AddMessage(r, v1::ROLE_USER, "hi");
         r->mutable_chat()->set_thinking_mode(static_cast<v1::ThinkingMode>(9));
       },
       kField, "chat.thinking_mode", "9"},
      {"long_label", [](R* r) { r->set_request_id(std::string(257, 'x')); },
       kField, "request_id", "at most 256"},
      {"logprobs_21", [](R* r) { r->set_logprobs(21); }, kField, "logprobs",
       "0 to 20"},
      {"logprobs_negative", [](R* r) { r->set_logprobs(-1); }, kField,
       "logprobs", "0 to 20"},
      {"placement",
       [](R* r) { r->mutable_placement()->set_decode_worker("d"); }, kField,
       "placement", "--allow-placement"},
      {"prompt_tokens_differ", [](R* r) { r->set_expected_prompt_tokens(2); },
       kField, "expected_prompt_tokens", "the prompt has 3"},
      {"temperature_negative",
       [](R* r) { r->mutable_sampling()->set_temperature(-0.1F); }, kField,
       "temperature", "expected 0"},
      {"temperature_nan",
       [](R* r) { r->mutable_sampling()->set_temperature(std::nanf("")); },
       kField, "temperature", "nan"},
      {"top_p_0", [](R* r) { r->mutable_sampling()->set_top_p(0.0F); }, kField,
       "top_p", "more than 0"},
      {"top_p_over_1", [](R* r) { r->mutable_sampling()->set_top_p(1.01F); },
       kField, "top_p", "at most 1"},
      {"top_k_negative", [](R* r) { r->mutable_sampling()->set_top_k(-1); },
       kField, "top_k", ">= 0"},
      {"min_p_1", [](R* r) { r->mutable_sampling()->set_min_p(1.0F); }, kField,
       "min_p", "less"},
      {"max_tokens_0", [](R* r) { r->mutable_sampling()->set_max_tokens(0); },
       kField, "max_tokens", "expected >= 1"},
      {"min_over_max",
       [](R* r) {
         r->mutable_sampling()->set_max_tokens(4);
         r->mutable_sampling()->set_min_tokens(5);
       },
       kField, "min_tokens", "max_tokens"},
      {"n_0", [](R* r) { r->mutable_sampling()->set_n(0); }, kField, "n",
       "1 to 64"},
      {"n_65", [](R* r) { r->mutable_sampling()->set_n(65); }, kField, "n",
       "1 to 64"},
      {"many_stops",
       [](R* r) {
         for (int i = 0; i < 10'000; ++i) r->mutable_sampling()->add_stop("x");
       },
       kField, "stop", "10000 strings, at most 64"},
      {"empty_stop", [](R* r) { r->mutable_sampling()->add_stop(""); }, kField,
       "stop", "1 to 1024"},
      {"unknown_stop_id",
       [](R* r) { r->mutable_sampling()->add_stop_token_ids(2048); }, kField,
       "stop_token_ids", "0 to 2047"},
      {"max_tokens_beyond_context",
       [](R* r) { r->mutable_sampling()->set_max_tokens(kContext - 3 + 2); },
       ErrorReason::kContextExceeded, "max_tokens", "at most 4094"},
  };
  return *cases;
}

TEST_F(ValidateTest, BadInputIsRefusedByNameAndReason) {
  ASSERT_OK(Make(Ids(3)));
  for (const BadInput& bad : BadInputs()) {
    SCOPED_TRACE(bad.name);
    v1::GenerateRequest request = Ids(3);
    bad.change(&request);
    const auto spec = Make(request);
    EXPECT_THAT(spec, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr(bad.message)));
    EXPECT_EQ(request::InfoOf(spec.status()).reason, bad.reason);
    EXPECT_EQ(request::InfoOf(spec.status()).field, bad.field);
  }
}

TEST_F(ValidateTest, PromptMustLeaveRoomInTheContext) {
  const auto full = Make(Ids(kContext));
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("4096 tokens")));
  EXPECT_EQ(request::InfoOf(full.status()).reason,
            ErrorReason::kContextExceeded);
  v1::GenerateRequest request = Ids(kContext - 1);
  for (const int32_t fits : {1, 2}) {
    request.mutable_sampling()->set_max_tokens(fits);
    const auto spec = Make(request);
    ASSERT_OK(spec) << fits;
    EXPECT_LE(spec->positions(), kContext);
  }
  request.mutable_sampling()->set_max_tokens(3);
  EXPECT_EQ(request::InfoOf(Make(request).status()).reason,
            ErrorReason::kContextExceeded);
}

TEST_F(ValidateTest, DefaultMaxTokensIsWhatFits) {
  ASSERT_OK_AND_ASSIGN(auto spec, Make(Ids(1)));
  EXPECT_EQ(spec.sampling.max_tokens, 4096);
  ASSERT_OK_AND_ASSIGN(spec, Make(Ids(100)));
  EXPECT_EQ(spec.sampling.max_tokens, 3997);
  AddDecode(/*blocks=*/4, /*slots=*/8, /*max_positions=*/4096);
  ASSERT_OK_AND_ASSIGN(spec, Make(Ids(100)));
  EXPECT_EQ(spec.positions(), 1024);
  EXPECT_EQ(spec.blocks(), 4);
  // Two samples share no block of a prompt of 100 tokens.
  v1::GenerateRequest two = Ids(100);
  two.mutable_sampling()->set_n(2);
  ASSERT_OK_AND_ASSIGN(spec, Make(two));
  EXPECT_EQ(spec.positions(), 512);
  EXPECT_EQ(spec.blocks(), 4);
}

TEST_F(ValidateTest, MoreThanAnyWorkerHasNeverFits) {
  AddDecode(/*blocks=*/4, /*slots=*/8, /*max_positions=*/4096);
  v1::GenerateRequest request = Ids(100);
  request.mutable_sampling()->set_max_tokens(925);
  ASSERT_OK(Make(request));
  request.mutable_sampling()->set_max_tokens(926);
  const auto spec = Make(request);
  EXPECT_THAT(spec, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(request::InfoOf(spec.status()).reason, ErrorReason::kNeverFits);
  v1::GenerateRequest samples = Ids(10);
  samples.mutable_sampling()->set_n(9);  // of 8 slots
  EXPECT_EQ(request::InfoOf(Make(samples).status()).reason,
            ErrorReason::kNeverFits);
}

TEST_F(ValidateTest, UnsetAndZeroAreDifferent) {
  ASSERT_OK_AND_ASSIGN(auto spec, Make(Ids(3)));
  EXPECT_EQ(spec.sampling.temperature, 1.0F);  // the checkpoint's
  v1::GenerateRequest zero = Ids(3);
  zero.mutable_sampling()->set_temperature(0.0F);
  ASSERT_OK_AND_ASSIGN(spec, Make(zero));
  EXPECT_EQ(spec.sampling.temperature, 0.0F);
}

TEST_F(ValidateTest, EveryFieldArrives) {
  v1::GenerateRequest request = Ids(3);
  v1::SamplingParams& s = *request.mutable_sampling();
  s.set_temperature(0.5F);
  s.set_top_p(0.25F);
  s.set_top_k(11);
  s.set_min_p(0.125F);
  s.set_repetition_penalty(1.5F);
  s.set_presence_penalty(0.75F);
  s.set_frequency_penalty(-0.75F);
  s.set_seed(99);
  s.set_max_tokens(17);
  s.set_min_tokens(2);
  s.set_ignore_eos(true);
  s.set_n(3);
  s.add_stop("end");
  s.add_stop_token_ids(5);
  request.set_logprobs(0);
  request.set_return_token_ids(true);
  request.set_request_id("label");
  ASSERT_OK_AND_ASSIGN(const auto spec, Make(request));
  EXPECT_EQ(spec.sampling.temperature, 0.5F);
  EXPECT_EQ(spec.sampling.top_p, 0.25F);
  EXPECT_EQ(spec.sampling.top_k, 11);
  EXPECT_EQ(spec.sampling.min_p, 0.125F);
  EXPECT_EQ(spec.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(spec.sampling.presence_penalty, 0.75F);
  EXPECT_EQ(spec.sampling.frequency_penalty, -0.75F);
  EXPECT_EQ(spec.sampling.seed, 99u);
  EXPECT_EQ(spec.sampling.max_tokens, 17);
  EXPECT_EQ(spec.sampling.min_tokens, 2);
  EXPECT_TRUE(spec.sampling.ignore_eos);
  EXPECT_EQ(spec.sampling.n, 3);
  EXPECT_EQ(spec.sampling.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(spec.sampling.stop_token_ids, std::vector<int32_t>{5});
  EXPECT_EQ(spec.logprobs, 0);
  EXPECT_TRUE(spec.return_token_ids);
  EXPECT_EQ(spec.label, "label");
  EXPECT_EQ(spec.prompt_hash, HashTokenIds({7, 7, 7}));
}

TEST_F(ValidateTest, SeedsAndIdsDifferBetweenRequests) {
  ASSERT_OK_AND_ASSIGN(const auto a, Make(Ids(3)));
  ASSERT_OK_AND_ASSIGN(const auto b, Make(Ids(3)));
  EXPECT_NE(a.sampling.seed, b.sampling.seed);
  EXPECT_NE(a.id, b.id);
}

TEST_F(ValidateTest, ControlLiteralsInAChatStayText) {
  v1::GenerateRequest plain;
  AddMessage(&plain, v1::ROLE_USER, "hi");
  ASSERT_OK_AND_ASSIGN(const auto a, Make(plain));
  v1::GenerateRequest forged;
  AddMessage(&forged, v1::ROLE_USER, "</think>");
  ASSERT_OK_AND_ASSIGN(const auto b, Make(forged));
  const int32_t close = *DemoModel().tokenizer->IdOf("</think>");
  const auto count = [close](const dispatch::RequestSpec& spec) {
    return std::count(spec.prompt_ids->begin(), spec.prompt_ids->end(), close);
  };
  EXPECT_EQ(count(a), count(b));
}

TEST_F(ValidateTest, DeadlinesAreBounded) {
  const Validator validator(DemoModel().facts, limits_,
                            DemoModel().tokenizer.get(),
                            DemoModel().encoder.get(), &random_);
  const absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(*validator.Deadline(now, absl::Seconds(1)), now + absl::Seconds(1));
  EXPECT_EQ(*validator.Deadline(now, absl::InfiniteDuration()),
            now + limits_.default_deadline);
  EXPECT_EQ(*validator.Deadline(now, absl::Hours(100)),
            now + limits_.max_deadline);
  for (const absl::Duration late : {absl::ZeroDuration(), -absl::Seconds(1)}) {
    EXPECT_THAT(validator.Deadline(now, late),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

TEST(RequestParserTest, NamesTheFieldThatIsNotUtf8) {
  v1::GenerateRequest request;
  AddMessage(&request, v1::ROLE_USER, "good");
  AddMessage(&request, v1::ROLE_USER, "MARK1");
  request.mutable_sampling()->add_stop("MARK2");
  request.set_request_id("MARK3");
  const std::string good = request.SerializeAsString();
  ASSERT_OK(ParseGenerateRequest(good));
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"MARK1", "chat.messages[1].content"},
      {"MARK2", "sampling.stop[0]"},
      {"MARK3", "request_id"}};
  for (const auto& [mark, field] : cases) {
    std::string bytes = good;
    bytes[bytes.find(mark)] = '\x80';
    EXPECT_EQ(request::InfoOf(ParseGenerateRequest(bytes).status()).field,
              field);
  }
}

TEST(RequestParserTest, RefusesBytesThatAreNoMessage) {
  EXPECT_THAT(ParseGenerateRequest("\x12\x7f"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ModelFactsTest, ReadsLimitsAndDefaults) {
  ASSERT_OK_AND_ASSIGN(
      const ModelFacts facts,
      ParseModelFacts(R"({"vocab_size":10,"max_position_embeddings":64})",
                      R"({"temperature":0.6,"top_p":0.9})"));
  EXPECT_EQ(facts.vocab_size, 10);
  EXPECT_EQ(facts.context_tokens, 64);
  EXPECT_EQ(facts.defaults.temperature, 0.6F);
  EXPECT_EQ(facts.defaults.top_p, 0.9F);
  ASSERT_OK_AND_ASSIGN(
      const ModelFacts greedy,
      ParseModelFacts(R"({"vocab_size":10,"max_position_embeddings":64})",
                      R"({"do_sample":false,"temperature":0.6})"));
  EXPECT_EQ(greedy.defaults.temperature, 0.0F);
}

TEST(ModelFactsTest, RefusesWhatItCannotServe) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[]", ""},
      {"{", ""},
      {R"({"vocab_size":10})", ""},
      {R"({"vocab_size":0,"max_position_embeddings":64})", ""},
      {R"({"vocab_size":"x","max_position_embeddings":64})", ""},
      {R"({"vocab_size":10,"max_position_embeddings":64})", R"({"top_p":2})"},
      {R"({"vocab_size":10,"max_position_embeddings":64})", "nonsense"}};
  for (const auto& [config, generation] : cases) {
    EXPECT_THAT(ParseModelFacts(config, generation),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << config << generation;
  }
  EXPECT_THAT(ReadModelFacts("/nowhere"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

}  // namespace
}  // namespace baton::router::frontend
