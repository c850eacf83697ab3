// The oracle through a real prefill process: this test is the decode process.
// It reserves, receives over gRPC and TCP, commits, and steps the sequence, so
// that full logits can be compared, which the public API does not give out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/handoff/receiver.h"
#include "common/handoff/ticket_proto.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"
#include "common/transfer/grpc_link_service.h"
#include "tests/integration/cluster.h"
#include "tests/numeric/oracle_support.h"

namespace baton::integration {
namespace {

using numeric::Golden;
using numeric::Rig;

constexpr Incarnation kIncarnation = 77;

// The receiving half of a decode worker.
class Decoder {
 public:
  Decoder(const std::string& checkpoint, const std::string& prefill)
      : rig_(*Rig::Create({.checkpoint = checkpoint, .poison = true})),
        stub_(v1::PrefillService::NewStub(rpc::CreateChannel(prefill))) {
    checkpoint_ =
        *checkpoint::Checkpoint::Open(numeric::CheckpointDir(checkpoint));
    listener_ = *transfer::TcpSegmentListener::Create({});
    link_ = std::make_unique<transfer::GrpcLinkService>(
        &acceptor_, listener_.get(), kIncarnation);
    server_ = *rpc::Server::Start(
        {.address = "127.0.0.1:0", .services = {link_.get()}});
    receiver_ = *handoff::CreateReceiver(
        {.identity = {.worker = "test-decode",
                      .incarnation = kIncarnation,
                      .model_digest = checkpoint_->digest(),
                      .state_format_hash = rig_->store().format().Hash()},
         .endpoints = {server_->address()},
         .store = &rig_->store(),
         .vocab_size = rig_->vocab()});
    acceptor_.receiver = receiver_.get();
  }
  ~Decoder() {
    server_->Shutdown(absl::ZeroDuration());
    link_.reset();
    listener_.reset();
  }

  Rig& rig() { return *rig_; }

  // Prompt through the prefill process; the committed sequence and its logits.
  absl::StatusOr<Rig::Sequence> Receive(const std::vector<int32_t>& prompt,
                                        int64_t max_positions,
                                        std::vector<float>* logits) {
    const HandoffId id{99, ++next_id_};
    Rig::Sequence sequence = rig_->NewSequence(max_positions);
    rig_->store().ResetSlot(sequence.state.slot);
    const Sha256Digest hash = HashTokenIds(prompt);
    ASSIGN_OR_RETURN(
        const handoff::Ticket ticket,
        receiver_->Reserve(
            {.handoff = id,
             .prompt_tokens = static_cast<int64_t>(prompt.size()),
             .prompt_hash = hash,
             .sequence = sequence.state.view(),
             .deadline = Clock::Real()->Now() + absl::Minutes(2)}));
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(absl::Minutes(2)));
    const auto stream = stub_->Prefill(&context);
    v1::PrefillRequest request;
    auto* admit = request.mutable_admit();
    admit->set_request_id(ToBytes(id));
    *admit->mutable_handoff() = rpc::HandoffToProto(id, 1);
    admit->mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
    admit->set_prompt_hash(BytesOf(hash));
    admit->set_model_digest(BytesOf(checkpoint_->digest()));
    stream->Write(request);
    *request.mutable_attach()->mutable_ticket() =
        handoff::TicketToProto(ticket);
    stream->Write(request);

    const absl::Time deadline = Clock::Real()->Now() + absl::Minutes(2);
    while (Clock::Real()->Now() < deadline) {
      for (auto& event : receiver_->TakeEvents()) {
        if (event.kind == handoff::ReceiverEventKind::kFailed) {
          return event.status;
        }
        if (event.kind == handoff::ReceiverEventKind::kVerified) {
          *logits = std::move(event.last_logits);
          if (receiver_->Commit(id, 1) != handoff::CommitResult::kCommitted) {
            return absl::InternalError("not committed");
          }
          sequence.state.processed = static_cast<int64_t>(prompt.size());
          v1::PrefillResponse response;
          while (stream->Read(&response)) {
          }
          const absl::Status status = rpc::FromGrpc(stream->Finish());
          if (!status.ok()) return status;
          return sequence;
        }
      }
      absl::SleepFor(absl::Microseconds(200));
    }
    context.TryCancel();
    stream->Finish().ok();
    return absl::DeadlineExceededError("no verified hand-off");
  }

 private:
  // Exists before the receiver, whose endpoint is the server's.
  struct LateAcceptor final : transfer::LinkAcceptor {
    absl::StatusOr<std::shared_ptr<transfer::LinkReceiverHandler>> Accept(
        const transfer::LinkHello& hello, LinkEpoch epoch,
        std::shared_ptr<transfer::ReceiverLink> link) override {
      return receiver->acceptor()->Accept(hello, epoch, std::move(link));
    }
    handoff::Receiver* receiver = nullptr;
  };

  std::unique_ptr<Rig> rig_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<v1::PrefillService::Stub> stub_;
  LateAcceptor acceptor_;
  std::unique_ptr<handoff::Receiver> receiver_;
  std::unique_ptr<transfer::TcpSegmentListener> listener_;
  std::unique_ptr<transfer::GrpcLinkService> link_;
  std::unique_ptr<rpc::Server> server_;
  uint64_t next_id_ = 0;
};

double MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  double max = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    max = std::max(max, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return max;
}

class ProcessOracle : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start(
        {.decode = 0, .model = numeric::CheckpointDir(GetParam())});
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = *std::move(cluster);
    decoder_ = std::make_unique<Decoder>(GetParam(),
                                         cluster_->member("prefill-0").grpc);
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    EXPECT_OK(cluster_->WaitUntilIdle(absl::Seconds(5)));
    EXPECT_EQ(cluster_->Bugs(), 0);
  }
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Decoder> decoder_;
};

TEST_P(ProcessOracle, LastLogitsOfEveryPrompt) {
  const Golden golden(GetParam());
  double worst = 0;
  for (int32_t i = 0; i < golden.Count("prompt"); ++i) {
    const std::string name = absl::StrCat("prompt.", i);
    const std::vector<int32_t> ids = golden.Ints(name + ".ids");
    std::vector<float> logits;
    const auto sequence =
        decoder_->Receive(ids, static_cast<int64_t>(ids.size()), &logits);
    ASSERT_TRUE(sequence.ok()) << name << " " << sequence.status().ToString();
    decoder_->rig().Release(*sequence);
    const std::vector<float> all = golden.Floats(name + ".logits");
    const auto want = absl::MakeConstSpan(all).last(
        static_cast<size_t>(decoder_->rig().vocab()));
    const double difference = MaxDifference(logits, want);
    worst = std::max(worst, difference);
    // The bound on F32 logits.
    EXPECT_LE(difference, 2e-3) << name;
    if (numeric::Margin(want) > 1e-2F) {
      EXPECT_EQ(numeric::ArgMax(logits), numeric::ArgMax(want)) << name;
    }
  }
  std::printf("%s: %d prompts, largest difference %.2e\n", GetParam(),
              golden.Count("prompt"), worst);
}

TEST_P(ProcessOracle, TeacherForcedStepByStep) {
  const Golden golden(GetParam());
  double worst = 0;
  int32_t rows = 0;
  for (int32_t i = 0; i < golden.Count("teacher"); ++i) {
    const std::string name = absl::StrCat("teacher.", i);
    const std::vector<int32_t> ids = golden.Ints(name + ".ids");
    const auto first =
        static_cast<size_t>(golden.Ints(name + ".first").front());
    const std::vector<float> all = golden.Floats(name + ".logits");
    const auto vocab = static_cast<size_t>(decoder_->rig().vocab());
    // Logits of positions first - 1 .. end; the file may end before the ids do.
    const size_t count = all.size() / vocab;
    std::vector<float> logits;
    auto sequence = decoder_->Receive(
        std::vector<int32_t>(ids.begin(),
                             ids.begin() + static_cast<ptrdiff_t>(first)),
        static_cast<int64_t>(ids.size()), &logits);
    ASSERT_TRUE(sequence.ok()) << name << " " << sequence.status().ToString();
    for (size_t row = 0; row < count; ++row) {
      if (row > 0) {
        const auto next = decoder_->rig().Feed(
            &*sequence, absl::MakeConstSpan(ids).subspan(first + row - 1, 1), 1,
            model::LogitsWanted::kLast);
        ASSERT_TRUE(next.ok()) << next.status().ToString();
        logits = *next;
      }
      const auto want = absl::MakeConstSpan(all).subspan(row * vocab, vocab);
      for (size_t v = 0; v < vocab; ++v) {
        const float rounded =
            numeric::F32FromF16(numeric::F16FromF32(logits[v]));
        // One unit of the F16 rounding on either side of the 2e-3.
        const float unit = std::max(std::abs(want[v]), 0x1p-14F) * 0x1p-10F;
        const double difference = std::abs(rounded - want[v]);
        worst = std::max(worst, difference - static_cast<double>(unit));
        ASSERT_LE(difference, 2e-3 + static_cast<double>(unit))
            << name << " row " << row << " token " << v;
      }
      ++rows;
    }
    decoder_->rig().Release(*sequence);
  }
  std::printf("%s: %d teacher-forced rows, beyond F16 rounding at most %.2e\n",
              GetParam(), rows, std::max(worst, 0.0));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ProcessOracle,
                         ::testing::Values("demo", "random"),
                         [](const auto& test) {
                           return std::string(test.param);
                         });

}  // namespace
}  // namespace baton::integration
