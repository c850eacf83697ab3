// The service over a real gRPC server and a whole PrefillWorker, with a sender
// that commits by itself.
#include "prefill_worker/service/prefill_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "baton/v1/prefill.grpc.pb.h"
#include "common/handoff/ticket_proto.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/sync_point.h"
#include "prefill_worker/prefill_worker.h"
#include "tests/prefill_worker/engine/engine_fixture.h"

namespace baton::prefill_worker {
namespace {

using baton::testing::StatusIs;
using request::ErrorReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PrefillServiceTest : public EngineTest {
 protected:
  void SetUp() override {
    Build();
    engine_ = nullptr;  // the worker has its own
    ASSERT_OK_AND_ASSIGN(
        server_, rpc::Server::Start(
                     {.address = "127.0.0.1:0", .services = {&service_}}));
    stub_ = v1::PrefillService::NewStub(rpc::CreateChannel(server_->address()));
  }

  void TearDown() override {
    server_->Shutdown(absl::ZeroDuration());
    if (worker_ != nullptr) worker_->Stop();
  }

  void StartWorker(EngineOptions options = {}) {
    options.model_digest = SharedModel::Get().checkpoint().digest();
    ASSERT_OK_AND_ASSIGN(
        worker_,
        PrefillWorker::Create(
            options, {.model = SharedModel::Get().model(),
                      .store = store_.get(),
                      .pool = pool_.get(),
                      .metrics = metric_set_.get(),
                      .make_sender = [this](std::function<void()> on_event)
                          -> absl::StatusOr<std::unique_ptr<handoff::Sender>> {
                        auto sender = std::make_unique<FakeSender>();
                        sender->set_automatic(std::move(on_event));
                        return sender;
                      }}));
    worker_->Start();
    service_.SetIntake(worker_.get());
  }

  // A call of the router.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<
        grpc::ClientReaderWriter<v1::PrefillRequest, v1::PrefillResponse>>
        stream;

    // "admitted", "started", "progress", "sealed", "verdict", or "end".
    std::string Next() {
      v1::PrefillResponse response;
      if (!stream->Read(&response)) return "end";
      switch (response.message_case()) {
        case v1::PrefillResponse::kAdmitted:
          return "admitted";
        case v1::PrefillResponse::kStarted:
          return "started";
        case v1::PrefillResponse::kProgress:
          return "progress";
        case v1::PrefillResponse::kSealed:
          return "sealed";
        case v1::PrefillResponse::kVerdict:
          return response.verdict().committed() ? "committed" : "rejected";
        case v1::PrefillResponse::MESSAGE_NOT_SET:
          break;
      }
      return "empty";
    }
    // Reads up to the end.
    absl::Status Finish() {
      while (Next() != "end") {
      }
      return rpc::FromGrpc(stream->Finish());
    }
  };
  std::unique_ptr<Call> Open(absl::Duration deadline = absl::Seconds(30)) {
    auto call = std::make_unique<Call>();
    call->context.set_deadline(rpc::DeadlineIn(deadline));
    call->stream = stub_->Prefill(&call->context);
    return call;
  }
  v1::PrefillRequest AdmitMessage(uint64_t n, int32_t tokens) {
    const PromptRequest request = Request(n, tokens);
    v1::PrefillRequest message;
    auto& admit = *message.mutable_admit();
    admit.set_request_id(ToBytes(request.request));
    *admit.mutable_handoff() =
        rpc::HandoffToProto(request.handoff, request.attempt);
    admit.mutable_prompt_ids()->Add(request.prompt_ids.begin(),
                                    request.prompt_ids.end());
    admit.set_prompt_hash(BytesOf(request.prompt_hash));
    admit.set_model_digest(BytesOf(request.model_digest));
    return message;
  }
  static v1::PrefillRequest AttachMessage(uint64_t n) {
    v1::PrefillRequest message;
    *message.mutable_attach()->mutable_ticket() =
        handoff::TicketToProto(TicketFor(n));
    return message;
  }
  // Whether all memory came back in time.
  bool BecomesFree() {
    // A bound against hanging only: the step that runs ends first, and an
    // instrumented step of 512 tokens takes ten seconds.
    const absl::Time end = Clock::Real()->Now() + absl::Seconds(60);
    while (Clock::Real()->Now() < end) {
      // The loop's own turn publishes; each posted closure follows one.
      if (worker_->load().sequences == 0 &&
          worker_->load().counts.free == kBlocks) {
        return true;
      }
      worker_->loop()->Wake();
      std::this_thread::yield();
    }
    return false;
  }

  PrefillServiceImpl service_{Clock::Real()};
  std::unique_ptr<PrefillWorker> worker_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::PrefillService::Stub> stub_;
};

TEST_F(PrefillServiceTest, RefusesWhileLoading) {
  auto call = Open();
  const absl::Status status = call->Finish();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("loading")));
}

TEST_F(PrefillServiceTest, RunsAPromptToItsVerdict) {
  StartWorker();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 300)));
  EXPECT_EQ(call->Next(), "admitted");
  EXPECT_EQ(call->Next(), "started");
  ASSERT_TRUE(call->stream->Write(AttachMessage(1)));
  std::vector<std::string> rest;
  for (std::string next = call->Next(); next != "end"; next = call->Next()) {
    rest.push_back(next);
  }
  EXPECT_THAT(rest, ElementsAre("progress", "sealed", "committed"));
  EXPECT_OK(rpc::FromGrpc(call->stream->Finish()));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, AnswersRefusalsWithTheirReason) {
  StartWorker();
  auto call = Open();
  auto message = AdmitMessage(1, 300);
  message.mutable_admit()->set_prompt_ids(5, 1);
  ASSERT_TRUE(call->stream->Write(message));
  const absl::Status status = call->Finish();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kMismatch);
}

TEST_F(PrefillServiceTest, RefusesMalformedCalls) {
  StartWorker();
  struct Case {
    v1::PrefillRequest message;
    const char* text;
  };
  std::vector<Case> cases;
  cases.push_back({v1::PrefillRequest(), "expected Admit"});
  cases.push_back({AttachMessage(1), "before Admit"});
  auto message = AdmitMessage(1, 10);
  message.mutable_admit()->mutable_handoff()->set_handoff_id("short");
  cases.push_back({message, "hand"});
  message = AdmitMessage(1, 10);
  message.mutable_admit()->set_prompt_hash("short");
  cases.push_back({message, "prompt_hash"});
  message = AdmitMessage(1, 10);
  message.mutable_admit()->set_request_id("short");
  cases.push_back({message, "request_id"});
  for (const Case& c : cases) {
    auto call = Open();
    ASSERT_TRUE(call->stream->Write(c.message));
    EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(c.text)));
  }
  // A call that says nothing at all.
  auto call = Open();
  ASSERT_TRUE(call->stream->WritesDone());
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kInvalidArgument));
  // A second Admit ends the prompt of the first.
  call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(2, 10)));
  ASSERT_TRUE(call->stream->Write(AdmitMessage(3, 10)));
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("second Admit")));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, CancellingTheCallReturnsTheMemory) {
  StartWorker();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 2000)));
  EXPECT_EQ(call->Next(), "admitted");
  call->context.TryCancel();
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, CancelEndsTheCallThoughTheStepIsStuck) {
  testing::SyncPoint stuck("prefill.before_step");
  StartWorker();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 100)));
  ASSERT_TRUE(stuck.WaitUntilReached());
  call->context.TryCancel();
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kCancelled));
  // The server can shut down meanwhile.
  server_->Shutdown(absl::ZeroDuration());
  stuck.Release();
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, HalfClosingAfterAttachStillGetsTheVerdict) {
  StartWorker();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 100)));
  ASSERT_TRUE(call->stream->Write(AttachMessage(1)));
  ASSERT_TRUE(call->stream->WritesDone());
  EXPECT_OK(call->Finish());
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, TheCallsDeadlineEndsThePrompt) {
  StartWorker();
  auto call = Open(absl::Milliseconds(300));
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 10)));  // no ticket ever
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(PrefillServiceTest, DrainRefusesNewPromptsAndFinishesOldOnes) {
  StartWorker();
  auto running = Open();
  ASSERT_TRUE(running->stream->Write(AdmitMessage(1, 100)));
  EXPECT_EQ(running->Next(), "admitted");
  worker_->BeginDrain();
  EXPECT_FALSE(worker_->Drained());
  auto refused = Open();
  ASSERT_TRUE(refused->stream->Write(AdmitMessage(2, 10)));
  const absl::Status status = refused->Finish();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(request::InfoOf(status).reason, ErrorReason::kDraining);
  ASSERT_TRUE(running->stream->Write(AttachMessage(1)));
  EXPECT_OK(running->Finish());
  ASSERT_TRUE(BecomesFree());
  EXPECT_TRUE(worker_->Drained());
}

TEST_F(PrefillServiceTest, StoppingTheWorkerEndsItsCalls) {
  StartWorker();
  auto call = Open();
  ASSERT_TRUE(call->stream->Write(AdmitMessage(1, 100)));
  EXPECT_EQ(call->Next(), "admitted");
  worker_->Stop();
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kUnavailable));
  auto late = Open();
  late->stream->Write(AdmitMessage(2, 100));
  EXPECT_THAT(late->Finish(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace baton::prefill_worker
