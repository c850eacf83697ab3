// Every kind of bad input through the public API: exact status, reason, field,
// and a message that says what was expected; the cluster goes on serving and
// holds nothing.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/cli/client.h"
#include "common/request/request.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"
#include "tests/integration/cluster.h"

namespace baton::integration {
namespace {

using ::baton::request::ErrorReason;
using ::testing::HasSubstr;

constexpr int32_t kContext = 4096;  // of the demo model
constexpr int32_t kVocabulary = 2048;

class BadInput : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = Cluster::Start({});
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = cluster->release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static v1::GenerateRequest Good() {
    v1::GenerateRequest request;
    request.set_prompt("My dog is");
    request.mutable_sampling()->set_max_tokens(2);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }

  static absl::Status Call(const v1::GenerateRequest& request,
                           absl::Duration timeout = absl::Seconds(30)) {
    return cluster_->client().Generate(
        request, timeout, [](const v1::GenerateResponse&) { return true; });
  }

  static void Ids(v1::GenerateRequest* request, int32_t count) {
    request->clear_prompt();
    for (int32_t i = 0; i < count; ++i) {
      request->mutable_token_ids()->add_ids(300 + i % 1000);
    }
  }

  static Cluster* cluster_;
};

Cluster* BadInput::cluster_ = nullptr;

TEST_F(BadInput, EachIsRefusedWithItsReason) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string name;
    std::function<void(v1::GenerateRequest*)> change;
    absl::StatusCode code;
    ErrorReason reason;
    std::string says;
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto field = ErrorReason::kInvalidField;
  const std::vector<Case> cases = {
      {"no input", [](auto* r) { r->clear_prompt(); }, invalid, field, "input"},
      {"empty prompt", [](auto* r) { r->set_prompt(""); }, invalid, field,
       "prompt"},
      {"empty ids", [](auto* r) { r->mutable_token_ids(); }, invalid, field,
       "token_ids"},
      {"empty chat", [](auto* r) { r->mutable_chat(); }, invalid, field,
       "messages"},
      {"prompt fills the context", [](auto* r) { Ids(r, kContext); }, invalid,
       ErrorReason::kContextExceeded, "4096"},
      {"prompt beyond the context", [](auto* r) { Ids(r, kContext * 4); },
       invalid, ErrorReason::kContextExceeded, "4096"},
      {"max_tokens 0",
       [](auto* r) { r->mutable_sampling()->set_max_tokens(0); }, invalid,
       field, "max_tokens"},
      {"max_tokens beyond the context",
       [](auto* r) { r->mutable_sampling()->set_max_tokens(kContext); },
       invalid, ErrorReason::kContextExceeded, "max_tokens"},
      {"unknown token id",
       [](auto* r) { r->mutable_token_ids()->add_ids(kVocabulary); }, invalid,
       field, "2047"},
      {"negative token id",
       [](auto* r) { r->mutable_token_ids()->add_ids(-1); }, invalid, field,
       "token_ids"},
      {"temperature below 0",
       [](auto* r) { r->mutable_sampling()->set_temperature(-0.1F); }, invalid,
       field, "temperature"},
      {"temperature NaN",
       [=](auto* r) { r->mutable_sampling()->set_temperature(nan); }, invalid,
       field, "temperature"},
      {"top_p 0", [](auto* r) { r->mutable_sampling()->set_top_p(0); }, invalid,
       field, "top_p"},
      {"top_p above 1", [](auto* r) { r->mutable_sampling()->set_top_p(1.5F); },
       invalid, field, "top_p"},
      {"10,000 stop strings",
       [](auto* r) {
         for (int i = 0; i < 10'000; ++i) {
           r->mutable_sampling()->add_stop(absl::StrCat("s", i));
         }
       },
       invalid, field, "stop"},
      {"empty stop string",
       [](auto* r) { r->mutable_sampling()->add_stop(""); }, invalid, field,
       "stop"},
      {"stop id outside the vocabulary",
       [](auto* r) { r->mutable_sampling()->add_stop_token_ids(129280); },
       invalid, field, "stop_token_ids"},
      {"n above 64", [](auto* r) { r->mutable_sampling()->set_n(65); }, invalid,
       field, "n"},
      {"n 0", [](auto* r) { r->mutable_sampling()->set_n(0); }, invalid, field,
       "n"},
      {"min_tokens above max_tokens",
       [](auto* r) { r->mutable_sampling()->set_min_tokens(3); }, invalid,
       field, "min_tokens"},
      {"21 logprobs", [](auto* r) { r->set_logprobs(21); }, invalid, field,
       "logprobs"},
      {"tools",
       [](auto* r) {
         auto* chat = r->mutable_chat();
         chat->set_tools_json(R"([{"name":"f"}])");
         auto* message = chat->add_messages();
         message->set_role(v1::ROLE_USER);
         message->set_content("x");
       },
       invalid, ErrorReason::kUnsupported, "tools"},
      {"unspecified role",
       [](auto* r) { r->mutable_chat()->add_messages()->set_content("x"); },
       invalid, field, "role"},
      {"unknown role",
       [](auto* r) {
         auto* message = r->mutable_chat()->add_messages();
         message->set_role(static_cast<v1::Role>(99));
         message->set_content("x");
       },
       invalid, field, "role"},
      {"long label", [](auto* r) { r->set_request_id(std::string(257, 'x')); },
       invalid, field, "request_id"},
      {"wrong expected_prompt_tokens",
       [](auto* r) { r->set_expected_prompt_tokens(999); }, invalid, field,
       "expected_prompt_tokens"},
      {"placement without leave",
       [](auto* r) { r->mutable_placement()->set_decode_worker("decode-0"); },
       invalid, field, "placement"},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Good();
    c.change(&request);
    const absl::Status status = Call(request);
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status.ToString();
    EXPECT_EQ(request::InfoOf(status).reason, c.reason)
        << c.name << ": " << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << c.name;
  }
  EXPECT_OK(Call(Good())) << "the cluster serves on";
  EXPECT_OK(cluster_->WaitUntilIdle(absl::Seconds(5)));
  EXPECT_EQ(cluster_->Bugs(), 0);
}

TEST_F(BadInput, TheLargestPromptThatFitsIsServed) {
  v1::GenerateRequest request = Good();
  Ids(&request, kContext - 1);
  request.mutable_sampling()->set_max_tokens(1);
  EXPECT_OK(Call(request, absl::Seconds(120)));
  request.mutable_sampling()->set_max_tokens(2);
  EXPECT_OK(Call(request, absl::Seconds(120)))
      << "positions = prompt + max_tokens - 1 = the context";
  request.mutable_sampling()->set_max_tokens(3);
  EXPECT_EQ(request::InfoOf(Call(request)).reason,
            ErrorReason::kContextExceeded);
}

TEST_F(BadInput, InvalidUtf8IsAnInvalidArgument) {
  for (const char* text : {"\xff", "ok\xc3", "\xed\xa0\x80"}) {
    v1::GenerateRequest request = Good();
    request.set_prompt(text);
    const absl::Status status = Call(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr("UTF-8"));
    request = Good();
    auto* message = request.mutable_chat()->add_messages();
    message->set_role(v1::ROLE_USER);
    message->set_content(text);
    EXPECT_EQ(Call(request).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(BadInput, ADeadlineInThePastEndsAtOnce) {
  EXPECT_EQ(Call(Good(), -absl::Seconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(BadInput, AMessageOf100MegabytesIsRefused) {
  grpc::ChannelArguments args;
  args.SetMaxSendMessageSize(-1);
  const auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      cluster_->address(), grpc::InsecureChannelCredentials(), args));
  v1::GenerateRequest request = Good();
  request.set_prompt(std::string(100 << 20, 'x'));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(30)));
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("16777216"));
  EXPECT_OK(Call(Good()));
}

TEST_F(BadInput, AbortOfAnUnknownIdIsNotFound) {
  const auto stub =
      v1::InferenceService::NewStub(rpc::CreateChannel(cluster_->address()));
  for (const char* id : {"", "zz", "00000000000000000000000000000001"}) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(absl::Seconds(5)));
    v1::AbortRequest request;
    request.set_id(id);
    v1::AbortResponse response;
    const absl::Status status =
        rpc::FromGrpc(stub->Abort(&context, request, &response));
    EXPECT_TRUE(status.code() == absl::StatusCode::kNotFound ||
                status.code() == absl::StatusCode::kInvalidArgument)
        << status.ToString();
  }
}

}  // namespace
}  // namespace baton::integration
