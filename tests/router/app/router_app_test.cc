// The router in process, with real gRPC on loopback and fake workers.
#include "router/app/router_app.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/request/request.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"
#include "tests/router/app/fake_worker.h"

namespace baton::router::app {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;
using ::testing::HasSubstr;

struct Answer {
  absl::Status status;
  v1::Started started;
  std::string text;  // of all samples, in order of arrival
  std::vector<v1::Finished> finished;
  int deltas = 0;
};

class RouterAppTest : public ::testing::Test {
 protected:
  // As in main: gRPC's own shutdown between tests can take ten seconds.
  static void SetUpTestSuite() { grpc_init(); }
  void SetUp() override {
    bugs_before_ = BugCount();
    options_.listen = "127.0.0.1:0";
    options_.cluster = "127.0.0.1:0";
    options_.metrics = "";  // its server takes two seconds to stop
    options_.model_dir = baton::testing::SourcePath("deploy/demo-model");
    // Workers report only when told to.
    options_.heartbeat_interval = absl::Seconds(30);
    options_.run.queue_timeout = absl::ZeroDuration();
  }
  void TearDown() override {
    router_ = nullptr;
    EXPECT_EQ(BugCount(), bugs_before_);
  }
  void StartRouter() {
    random_ = std::make_unique<SeededRandom>(7);
    ASSERT_OK_AND_ASSIGN(
        router_, RouterApp::Start(options_, Clock::Real(), random_.get()));
    stub_ = v1::InferenceService::NewStub(
        rpc::CreateChannel(router_->listen_address()));
    cluster_ = v1::ClusterService::NewStub(
        rpc::CreateChannel(router_->cluster_address()));
  }
  void StartCluster() {
    StartRouter();
    prefill_ =
        std::make_unique<FakeWorker>("p0", true, &link_, &prefill_script_);
    decode_ =
        std::make_unique<FakeWorker>("d0", false, &link_, &decode_script_);
    ASSERT_TRUE(prefill_->Join(cluster_.get()).ok());
    ASSERT_TRUE(decode_->Join(cluster_.get()).ok());
  }
  static v1::GenerateRequest ChatRequest() {
    v1::GenerateRequest request;
    v1::Message* const message = request.mutable_chat()->add_messages();
    message->set_role(v1::ROLE_USER);
    message->set_content("My name is Ada.");
    return request;
  }
  Answer Generate(const v1::GenerateRequest& request,
                  absl::Duration deadline = absl::Seconds(20)) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(deadline));
    Answer answer;
    const auto stream = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (stream->Read(&response)) {
      if (response.has_started()) answer.started = response.started();
      if (response.has_delta()) {
        answer.text += response.delta().text();
        ++answer.deltas;
      }
      if (response.has_finished()) {
        answer.finished.push_back(response.finished());
      }
    }
    answer.status = rpc::FromGrpc(stream->Finish());
    return answer;
  }
  bool HasMetric(const std::string& line) {
    return router_->ExposeMetrics().find(absl::StrCat(line, "\n")) !=
           std::string::npos;
  }
  // Everything has ended: requests, calls to workers, gauges.
  void ExpectIdle() {
    EXPECT_TRUE(WaitUntil([&] {
      return router_->running_requests() == 0 && router_->live_calls() == 0;
    })) << router_->running_requests()
        << " requests, " << router_->live_calls() << " calls";
    EXPECT_TRUE(HasMetric("baton_requests_in_flight{state=\"running\"} 0"));
    EXPECT_TRUE(HasMetric("baton_requests_in_flight{state=\"waiting\"} 0"));
  }

  RouterOptions options_;
  std::unique_ptr<SeededRandom> random_;
  FakeLink link_;
  WorkerScript prefill_script_;
  WorkerScript decode_script_;
  std::unique_ptr<FakeWorker> prefill_;
  std::unique_ptr<FakeWorker> decode_;
  std::unique_ptr<RouterApp> router_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  int64_t bugs_before_ = 0;
};

TEST_F(RouterAppTest, StreamsAChatAndEchoesTheEffectiveValues) {
  StartCluster();
  v1::GenerateRequest request = ChatRequest();
  request.mutable_sampling()->set_n(2);
  const Answer answer = Generate(request);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.started.id().size(), 32u);
  EXPECT_EQ(answer.started.prefill_worker(), "p0");
  EXPECT_EQ(answer.started.decode_worker(), "d0");
  EXPECT_EQ(answer.started.prompt_hash().size(), 32u);
  EXPECT_GT(answer.started.prompt_tokens(), 3);
  const v1::SamplingParams& sampling = answer.started.sampling();
  EXPECT_TRUE(sampling.has_seed());
  EXPECT_EQ(sampling.temperature(), 1.0F);
  EXPECT_EQ(sampling.max_tokens(), 4096 - answer.started.prompt_tokens() + 1);
  EXPECT_EQ(answer.text, "ab ab ab ab ab ab ");
  ASSERT_EQ(answer.finished.size(), 2u);
  for (const v1::Finished& finished : answer.finished) {
    EXPECT_EQ(finished.usage().output_tokens(), 3);
    const v1::Timeline& t = finished.timeline();
    EXPECT_GT(t.first_token_us(), 0);
    EXPECT_EQ(
        t.queue_us() + t.prefill_us() + t.transfer_us() + t.first_decode_us(),
        t.first_token_us());
  }
  ExpectIdle();
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"ok\"} 1"));
  EXPECT_TRUE(HasMetric("baton_generation_tokens_total 6"));
  EXPECT_TRUE(HasMetric(absl::StrCat("baton_prompt_tokens_total ",
                                     answer.started.prompt_tokens())));
  EXPECT_TRUE(HasMetric("baton_workers{role=\"decode\",state=\"serving\"} 1"));
}

TEST_F(RouterAppTest, SurvivesAPrefillThatDiesBeforeTheCommit) {
  StartCluster();
  prefill_script_.prefill_deaths = 1;
  decode_script_.prefill_deaths_expected = 1;
  const Answer answer = Generate(ChatRequest());
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.text, "ab ab ab ");
  EXPECT_EQ(prefill_script_.calls.load(), 2);
  EXPECT_EQ(decode_script_.calls.load(), 1);
  ExpectIdle();
}

TEST_F(RouterAppTest, DecodeDeathAfterOutputIsAnErrorNotAnEnd) {
  decode_script_.die_after = 2;
  StartCluster();
  const Answer answer = Generate(ChatRequest());
  EXPECT_THAT(answer.status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(request::InfoOf(answer.status).reason, ErrorReason::kWorkerLost);
  EXPECT_EQ(answer.deltas, 2);
  EXPECT_TRUE(answer.finished.empty());
  ExpectIdle();
}

TEST_F(RouterAppTest, CancelReachesTheWorkers) {
  decode_script_.hang = true;
  StartCluster();
  grpc::ClientContext context;
  const auto stream = stub_->Generate(&context, ChatRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Read(&response));
  context.TryCancel();
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return decode_script_.cancelled == 1; }));
  ExpectIdle();
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"cancelled\"} 1"));
}

TEST_F(RouterAppTest, AbortEndsARunningRequest) {
  decode_script_.hang = true;
  StartCluster();
  grpc::ClientContext context;
  const auto stream = stub_->Generate(&context, ChatRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  v1::AbortRequest abort;
  abort.set_id(response.started().id());
  v1::AbortResponse aborted;
  grpc::ClientContext abort_context;
  EXPECT_TRUE(stub_->Abort(&abort_context, abort, &aborted).ok());
  while (stream->Read(&response)) {
  }
  EXPECT_THAT(rpc::FromGrpc(stream->Finish()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("Abort")));
  ExpectIdle();
  grpc::ClientContext again;
  EXPECT_EQ(stub_->Abort(&again, abort, &aborted).error_code(),
            grpc::StatusCode::NOT_FOUND);
  abort.set_id("x");
  grpc::ClientContext bad;
  EXPECT_EQ(stub_->Abort(&bad, abort, &aborted).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RouterAppTest, DeadlineEndsARunningRequest) {
  decode_script_.hang = true;
  StartCluster();
  const Answer answer = Generate(ChatRequest(), absl::Milliseconds(300));
  EXPECT_THAT(answer.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(WaitUntil([&] { return decode_script_.cancelled == 1; }));
  ExpectIdle();
  EXPECT_TRUE(HasMetric("baton_requests_total{outcome=\"deadline\"} 1"));
}

TEST_F(RouterAppTest, SlowReaderIsBoundedAndCutAndOthersGoOn) {
  // 40 MB of output against a client that reads one message.
  decode_script_.tokens = 400;
  decode_script_.text = std::string(100'000, 'x');
  options_.run.slow_reader_timeout = absl::Milliseconds(500);
  StartCluster();
  grpc::ClientContext context;
  const auto stream = stub_->Generate(&context, ChatRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(WaitUntil([&] {
    return HasMetric(
        "baton_requests_total{outcome=\"slow_reader\"} "
        "1");
  }));
  // Flow-control windows of two streams, not the whole output.
  EXPECT_LT(decode_script_.tokens_written.load(), 300);
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(status.error_message(), HasSubstr("did not read"));
  ExpectIdle();
  const Answer answer = Generate(ChatRequest());
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.deltas, 400);
}

TEST_F(RouterAppTest, RestartedWorkerOnTheSameAddressServesAgain) {
  StartCluster();
  ASSERT_OK(Generate(ChatRequest()).status);
  const std::string address = decode_->address();
  decode_ = nullptr;
  const Answer lost = Generate(ChatRequest());
  EXPECT_THAT(lost.status, StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(request::InfoOf(lost.status).reason, ErrorReason::kWorkerLost);

  decode_ = std::make_unique<FakeWorker>("d0", false, &link_, &decode_script_,
                                         /*incarnation=*/2, address);
  // A report of the dead incarnation is not taken for the new one.
  EXPECT_EQ(
      decode_->Beat(cluster_.get(), v1::WORKER_STATE_SERVING).error_code(),
      grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(decode_->Join(cluster_.get()).ok());
  const absl::Time before = Clock::Real()->Now();
  ASSERT_OK(Generate(ChatRequest()).status);
  EXPECT_LT(Clock::Real()->Now() - before, absl::Seconds(3));
  ExpectIdle();
}

TEST_F(RouterAppTest, WorkerWithAnotherModelIsRefusedAndCounted) {
  StartCluster();
  v1::RegisterRequest request;
  *request.mutable_worker() = decode_->Info();
  request.mutable_worker()->set_name("d9");
  request.mutable_worker()->set_model_digest(std::string(32, 'X'));
  v1::RegisterResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster_->Register(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(request::InfoOf(rpc::FromGrpc(status)).reason,
            ErrorReason::kMismatch);
  EXPECT_TRUE(HasMetric("baton_worker_mismatches 1"));
}

TEST_F(RouterAppTest, ClusterStatusAndModelInfoSayWhatIsThere) {
  StartCluster();
  v1::GetClusterStatusResponse status;
  grpc::ClientContext context;
  ASSERT_TRUE(
      cluster_
          ->GetClusterStatus(&context, v1::GetClusterStatusRequest(), &status)
          .ok());
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(0).info().name(), "d0");
  EXPECT_EQ(status.workers(0).state(), v1::WORKER_STATE_SERVING);
  v1::GetModelInfoResponse info;
  grpc::ClientContext info_context;
  ASSERT_TRUE(
      stub_->GetModelInfo(&info_context, v1::GetModelInfoRequest(), &info)
          .ok());
  EXPECT_EQ(info.context_tokens(), 4096);
  EXPECT_EQ(info.vocab_size(), 2048);
  EXPECT_EQ(info.state_format(), "fake");
}

TEST_F(RouterAppTest, CancelStormLeavesNothingBehind) {
  constexpr int kRequests = 200;
  decode_script_.tokens = 20;
  decode_script_.hang_every = 3;  // only a cancel ends these
  options_.queue.max_running = 16;
  StartCluster();
  SeededRandom random(11);
  int ended = 0;
  for (int round = 0; round < kRequests / 10; ++round) {
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>>
        streams;
    for (int i = 0; i < 10; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      streams.push_back(stub_->Generate(contexts.back().get(), ChatRequest()));
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      v1::GenerateResponse response;
      // From no event at all to the whole answer.
      for (uint64_t reads = random.Uint64() % 21; reads > 0; --reads) {
        if (!streams[i]->Read(&response)) break;
      }
      contexts[i]->TryCancel();
      while (streams[i]->Read(&response)) {
      }
      const grpc::Status status = streams[i]->Finish();
      EXPECT_TRUE(status.ok() ||
                  status.error_code() == grpc::StatusCode::CANCELLED)
          << status.error_message();
      ++ended;
    }
  }
  EXPECT_EQ(ended, kRequests);
  ExpectIdle();
  const auto total = [&](const std::string& outcome) {
    const std::string text = router_->ExposeMetrics();
    const std::string key =
        absl::StrCat("baton_requests_total{outcome=\"", outcome, "\"} ");
    return std::stoi(text.substr(text.find(key) + key.size()));
  };
  // A call that was cancelled before it left the client never arrived.
  EXPECT_LE(total("ok") + total("cancelled"), kRequests);
  EXPECT_GT(total("cancelled"), 0);
  for (const char* fault : {"worker_lost", "bug", "unspecified"}) {
    EXPECT_EQ(total(fault), 0) << fault;
  }
}

struct RawAnswer {
  absl::Status status;
  std::string bytes;
};

// Sends the bytes of a request as they are. A stream without an answer looks
// like a unary call.
RawAnswer CallRaw(const std::string& address, const std::string& method,
                  const std::string& bytes) {
  grpc::ChannelArguments args;
  args.SetMaxSendMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), args);
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(20)));
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer buffer(&slice, 1);
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, method, buffer, &queue);
  call->StartCall();
  grpc::Status status;
  grpc::ByteBuffer response;
  call->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  RawAnswer out{rpc::FromGrpc(status), ""};
  std::vector<grpc::Slice> slices;
  if (status.ok() && response.Dump(&slices).ok()) {
    for (const grpc::Slice& piece : slices) {
      out.bytes.append(reinterpret_cast<const char*>(piece.begin()),
                       piece.size());
    }
  }
  return out;
}

absl::Status GenerateRaw(const std::string& address, const std::string& bytes) {
  return CallRaw(address, "/baton.v1.InferenceService/Generate", bytes).status;
}

TEST_F(RouterAppTest, HealthFollowsTheWorkers) {
  // HealthCheckResponse{status}: 1 SERVING, 2 NOT_SERVING.
  const auto health = [&] {
    const RawAnswer answer =
        CallRaw(router_->listen_address(), "/grpc.health.v1.Health/Check", "");
    EXPECT_OK(answer.status);
    return answer.bytes;
  };
  StartRouter();
  EXPECT_EQ(health(), "\x08\x02");
  const Answer answer = Generate(ChatRequest());
  EXPECT_THAT(answer.status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(request::InfoOf(answer.status).reason, ErrorReason::kNoWorker);
  FakeWorker prefill("p0", true, &link_, &prefill_script_);
  ASSERT_TRUE(prefill.Join(cluster_.get()).ok());
  EXPECT_EQ(health(), "\x08\x02");
  FakeWorker decode("d0", false, &link_, &decode_script_);
  ASSERT_TRUE(decode.Join(cluster_.get()).ok());
  EXPECT_EQ(health(), "\x08\x01");
  ASSERT_TRUE(decode.Beat(cluster_.get(), v1::WORKER_STATE_STALLED).ok());
  EXPECT_EQ(health(), "\x08\x02");
}

TEST_F(RouterAppTest, InvalidUtf8NamesTheField) {
  StartCluster();
  v1::GenerateRequest request = ChatRequest();
  std::string bytes = request.SerializeAsString();
  bytes[bytes.find("Ada")] = '\xff';
  const absl::Status status = GenerateRaw(router_->listen_address(), bytes);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("not valid UTF-8")));
  EXPECT_EQ(request::InfoOf(status).field, "chat.messages[0].content");
}

TEST_F(RouterAppTest, MessageBeyondTheLimitIsRefusedWithTheLimit) {
  StartCluster();
  const absl::Status status =
      GenerateRaw(router_->listen_address(), std::string(100 << 20, 'x'));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("16777216")));
  ASSERT_OK(Generate(ChatRequest()).status);
}

TEST_F(RouterAppTest, DrainLetsRunningRequestsFinish) {
  StartCluster();
  decode_script_.tokens = 3;
  grpc::ClientContext context;
  decode_script_.hang = true;
  const auto stream = stub_->Generate(&context, ChatRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  Thread drain("drain", [&] { router_->Drain(absl::Milliseconds(200)); });
  // The call neither ends before the timeout nor outlives it.
  while (stream->Read(&response)) {
  }
  const absl::Status status = rpc::FromGrpc(stream->Finish());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("drain timeout")));
  EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kDraining);
  drain.Join();
  EXPECT_EQ(router_->running_requests(), 0);
  EXPECT_EQ(router_->live_calls(), 0);
}

}  // namespace
}  // namespace baton::router::app
