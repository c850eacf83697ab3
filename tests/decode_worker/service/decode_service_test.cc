// DecodeService over real gRPC on loopback, with a backend that the test
// drives.
#include "decode_worker/service/decode_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"
#include "decode_worker/output/output_pump.h"
#include "tests/common/tokenizer/test_tokenizers.h"
#include "tests/decode_worker/collected.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;
using testing::DemoTokenizer;
using testing::StatusIs;

// Remembers what calls asked for. Thread-safe.
class FakeBackend final : public DecodeBackend {
 public:
  absl::Status Start(StartRequest start,
                     const std::shared_ptr<RequestOutput>& output) override {
    MutexLock lock(&mu_);
    if (!refuse_.ok()) return refuse_;
    start_ = std::move(start);
    output_ = output;
    changed_.SignalAll();
    return absl::OkStatus();
  }
  void Reticket(const std::shared_ptr<RequestOutput>&,
                Attempt attempt) override {
    MutexLock lock(&mu_);
    reticket_ = attempt;
    changed_.SignalAll();
  }
  void Cancel(const std::shared_ptr<RequestOutput>& output,
              const absl::Status& status) override {
    {
      MutexLock lock(&mu_);
      cancel_ = status;
      changed_.SignalAll();
    }
    output->End(status);
    output->NotifyReady();
  }
  const OutputVocabulary* vocabulary() const override {
    return &DemoVocabulary();
  }
  Clock* clock() const override { return Clock::Real(); }

  void Refuse(const absl::Status& status) {
    MutexLock lock(&mu_);
    refuse_ = status;
  }
  // Each waits until there is one.
  std::shared_ptr<RequestOutput> WaitForOutput() {
    MutexLock lock(&mu_);
    while (output_ == nullptr) changed_.Wait(&mu_);
    return output_;
  }
  StartRequest start() {
    MutexLock lock(&mu_);
    return *start_;
  }
  absl::Status WaitForCancel() {
    MutexLock lock(&mu_);
    while (!cancel_.has_value()) changed_.Wait(&mu_);
    return *cancel_;
  }
  Attempt WaitForReticket() {
    MutexLock lock(&mu_);
    while (reticket_ == 0) changed_.Wait(&mu_);
    return reticket_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Status refuse_ BATON_GUARDED_BY(mu_);
  std::optional<StartRequest> start_ BATON_GUARDED_BY(mu_);
  std::shared_ptr<RequestOutput> output_ BATON_GUARDED_BY(mu_);
  std::optional<absl::Status> cancel_ BATON_GUARDED_BY(mu_);
  Attempt reticket_ BATON_GUARDED_BY(mu_) = 0;
};

v1::DecodeRequest StartMessage() {
  v1::DecodeRequest message;
  v1::DecodeStart* const start = message.mutable_start();
  start->set_request_id(Id128ToBytes(1, 2));
  start->set_handoff_id(Id128ToBytes(3, 4));
  const std::vector<int32_t> ids{5, 6, 7};
  start->mutable_prompt_ids()->Add(ids.begin(), ids.end());
  start->set_prompt_hash(BytesOf(HashTokenIds(ids)));
  start->set_model_digest(std::string(32, 'm'));
  request::SamplingParams sampling;
  sampling.max_tokens = 9;
  sampling.n = 2;
  sampling.seed = 77;
  sampling.stop = {"x"};
  *start->mutable_sampling() = rpc::SamplingToProto(sampling);
  start->set_logprobs(3);
  return message;
}

class DecodeServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server =
        rpc::Server::Start({.address = "127.0.0.1:0", .services = {&service_}});
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = v1::DecodeService::NewStub(rpc::CreateChannel(server_->address()));
  }
  void TearDown() override {
    stream_.reset();
    server_->Shutdown(absl::ZeroDuration());
  }
  void Open(bool with_backend = true) {
    if (with_backend) service_.SetBackend(&backend_);
    context_.set_wait_for_ready(true);
    context_.set_deadline(rpc::DeadlineIn(absl::Seconds(30)));
    stream_ = stub_->Decode(&context_);
  }
  v1::DecodeResponse Read() {
    v1::DecodeResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  absl::Status Finish() {
    v1::DecodeResponse response;
    while (stream_->Read(&response)) {
    }
    return rpc::FromGrpc(stream_->Finish());
  }

  FakeBackend backend_;
  DecodeService service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::DecodeService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>
      stream_;
};

TEST_F(DecodeServiceTest, RefusesCallsWhileLoading) {
  Open(/*with_backend=*/false);
  EXPECT_THAT(Finish(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(DecodeServiceTest, CarriesEveryFieldInAndEveryEventOut) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  const auto output = backend_.WaitForOutput();
  const StartRequest start = backend_.start();
  EXPECT_EQ(start.request, (RequestId{1, 2}));
  EXPECT_EQ(start.handoff, (HandoffId{3, 4}));
  EXPECT_EQ(start.prompt_ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(start.prompt_hash, HashTokenIds(start.prompt_ids));
  EXPECT_EQ(BytesOf(start.model_digest), std::string(32, 'm'));
  EXPECT_EQ(start.sampling.n, 2);
  EXPECT_EQ(start.sampling.seed, 77u);
  EXPECT_EQ(start.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(start.logprobs, 3);
  EXPECT_LT(start.deadline - Clock::Real()->Now(), absl::Seconds(31));

  OutputPump pump;
  const auto notify = [&] {
    OutputPump::Outputs outputs{output};
    pump.Notify(&outputs);
  };
  output->Push(ReservedEvent{.ticket = {.handoff = {3, 4},
                                        .attempt = 1,
                                        .receiver = "decode-0",
                                        .receiver_incarnation = 8,
                                        .endpoints = {"127.0.0.1:9"},
                                        .lease = absl::Seconds(10)}});
  notify();
  const v1::DecodeResponse reserved = Read();
  EXPECT_EQ(reserved.reserved().ticket().receiver(), "decode-0");
  EXPECT_EQ(reserved.reserved().ticket().lease_ms(), 10000);

  output->Push(HandoffFailedEvent{
      .attempt = 1,
      .status = request::MakeError(absl::StatusCode::kDataLoss, "sum",
                                   {.reason = ErrorReason::kHandoffRejected})});
  notify();
  const v1::DecodeResponse failed = Read();
  EXPECT_EQ(failed.handoff_failed().reason(),
            v1::ERROR_REASON_HANDOFF_REJECTED);
  v1::DecodeRequest reticket;
  reticket.mutable_reticket()->set_attempt(2);
  ASSERT_TRUE(stream_->Write(reticket));
  EXPECT_EQ(backend_.WaitForReticket(), 2);
  output->Push(ReticketedEvent{.ticket = {.handoff = {3, 4}, .attempt = 2}});
  output->Push(CommittedEvent{.attempt = 2, .receive_us = 5, .commit_us = 6});
  std::vector<OutputToken> tokens{
      {.id = *DemoTokenizer().IdOf("a"), .logprob = -1.0F, .top = {{1, -2.0F}}},
      {.id = *DemoTokenizer().IdOf("b"), .logprob = -3.0F}};
  output->Append(1, absl::MakeSpan(tokens),
                 SampleEnd{request::FinishReason::kLength});
  output->Append(0, {}, SampleEnd{request::FinishReason::kStop});
  output->End(absl::OkStatus());
  notify();
  EXPECT_EQ(Read().reticketed().ticket().handoff().attempt(), 2);
  EXPECT_EQ(Read().committed().commit_us(), 6);
  std::string text;
  int finished = 0;
  v1::DecodeResponse response;
  while (stream_->Read(&response)) {
    if (response.has_tokens()) {
      EXPECT_EQ(response.tokens().index(), 1);
      EXPECT_EQ(response.tokens().token_ids_size(), 2);
      EXPECT_EQ(response.tokens().logprobs(0).top_size(), 1);
      text += response.tokens().text();
    } else {
      ASSERT_TRUE(response.has_finished());
      EXPECT_EQ(response.finished().events(),
                response.finished().index() == 1 ? 1 : 0);
      ++finished;
    }
  }
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(finished, 2);
  EXPECT_OK(rpc::FromGrpc(stream_->Finish()));
  server_->Shutdown(absl::Seconds(5));  // returns after the call's end
  EXPECT_TRUE(output->closed());
}

TEST_F(DecodeServiceTest, ARefusalKeepsItsReasonAndDelay) {
  backend_.Refuse(request::MakeError(
      absl::StatusCode::kResourceExhausted, "full",
      {.reason = ErrorReason::kOverloaded, .retry_delay_ms = 70}));
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  const absl::Status status = Finish();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kOverloaded);
  EXPECT_EQ(request::InfoOf(status).retry_delay_ms, 70);
}

TEST_F(DecodeServiceTest, RefusesMessagesThatAreNotAStart) {
  struct Case {
    std::string name;
    v1::DecodeRequest message;
    std::string field;
  };
  std::vector<Case> cases(1);
  cases[0] = {"empty", {}, "message"};
  cases.push_back({"reticket first", {}, "message"});
  cases.back().message.mutable_reticket()->set_attempt(2);
  cases.push_back({"short id", StartMessage(), "handoff_id"});
  cases.back().message.mutable_start()->set_handoff_id("short");
  cases.push_back({"zero id", StartMessage(), "request_id"});
  cases.back().message.mutable_start()->set_request_id(std::string(16, '\0'));
  cases.push_back({"short hash", StartMessage(), "prompt_hash"});
  cases.back().message.mutable_start()->set_prompt_hash("x");
  cases.push_back({"n = 65", StartMessage(), "n"});
  cases.back().message.mutable_start()->mutable_sampling()->set_n(65);
  service_.SetBackend(&backend_);
  for (const Case& c : cases) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(absl::Seconds(30)));
    const auto stream = stub_->Decode(&context);
    ASSERT_TRUE(stream->Write(c.message)) << c.name;
    v1::DecodeResponse response;
    EXPECT_FALSE(stream->Read(&response)) << c.name;
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << c.name;
    EXPECT_EQ(request::InfoOf(status).field, c.field) << c.name;
  }
}

TEST_F(DecodeServiceTest, AnEmptyStreamIsRefused) {
  Open();
  stream_->WritesDone();
  EXPECT_THAT(Finish(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(DecodeServiceTest, HalfClosingAfterStartIsNoCancel) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  stream_->WritesDone();
  const auto output = backend_.WaitForOutput();
  output->Push(CommittedEvent{.attempt = 1});
  output->NotifyReady();
  EXPECT_TRUE(Read().has_committed());
  for (int32_t i = 0; i < 2; ++i) {
    output->Append(i, {}, SampleEnd{request::FinishReason::kStop});
  }
  output->End(absl::OkStatus());
  output->NotifyReady();
  EXPECT_OK(Finish());
}

TEST_F(DecodeServiceTest, ACancelledCallCancelsItsRequest) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  const auto output = backend_.WaitForOutput();
  context_.TryCancel();
  EXPECT_THAT(backend_.WaitForCancel(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Finish(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(DecodeServiceTest, AbortOfTheRouterEndsTheCall) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  backend_.WaitForOutput();
  v1::DecodeRequest abort;
  abort.mutable_abort()->set_reason("client gone");
  ASSERT_TRUE(stream_->Write(abort));
  const absl::Status status = Finish();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kCancelled);
}

TEST_F(DecodeServiceTest, ASecondStartEndsTheRequest) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  ASSERT_TRUE(stream_->Write(StartMessage()));
  EXPECT_THAT(Finish(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(backend_.WaitForCancel(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(DecodeServiceTest, CutBreaksACallWhoseReaderTakesNothing) {
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  const auto output = backend_.WaitForOutput();
  output->Cut();
  EXPECT_THAT(backend_.WaitForCancel(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(Finish().ok());
}

TEST_F(DecodeServiceTest, OneEventAtATimeIsOutForAReaderThatIsAway) {
  // Far more text than any transport buffer holds; ids wait, text does not
  // exist yet, and one write at most is under way.
  Open();
  ASSERT_TRUE(stream_->Write(StartMessage()));
  const auto output = backend_.WaitForOutput();
  output->Push(CommittedEvent{.attempt = 1});
  const int32_t id = *DemoTokenizer().IdOf(" favorite");
  constexpr int kTokens = 400'000;
  std::vector<OutputToken> tokens(kTokens, OutputToken{.id = id});
  output->Append(0, absl::MakeSpan(tokens), std::nullopt);
  output->NotifyReady();
  // The step loop goes on: appending never waits for the write under way.
  tokens.assign(1, OutputToken{.id = id});
  output->Append(0, absl::MakeSpan(tokens),
                 SampleEnd{request::FinishReason::kLength});
  output->Append(1, {}, SampleEnd{request::FinishReason::kStop});
  output->End(absl::OkStatus());
  int64_t received = 0;
  int64_t events = 0;
  v1::DecodeResponse response;
  while (stream_->Read(&response)) {
    if (!response.has_tokens()) continue;
    EXPECT_LE(response.tokens().token_ids_size(), 1024);
    EXPECT_EQ(response.tokens().sequence(), events++);
    received += response.tokens().token_ids_size();
  }
  EXPECT_EQ(received, kTokens + 1);
  EXPECT_OK(rpc::FromGrpc(stream_->Finish()));
}

}  // namespace
}  // namespace baton::decode_worker
