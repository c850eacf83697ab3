#include "router/legs/grpc_legs.h"

#include <utility>

#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"
#include "router/legs/bidi_call.h"

namespace baton::router::legs {
namespace {

using dispatch::DecodeEvent;
using dispatch::LegEnded;
using dispatch::PrefillEvent;
using PrefillCall = BidiCall<v1::PrefillRequest, v1::PrefillResponse>;
using DecodeCall = BidiCall<v1::DecodeRequest, v1::DecodeResponse>;

absl::Status EmptyMessage(absl::string_view worker) {
  return request::MakeError(
      absl::StatusCode::kInternal,
      absl::StrCat("worker '", worker,
                   "' sent a message that this router does not know"),
      {.reason = request::ErrorReason::kBug});
}

// True when the status came from the transport rather than from our service,
// whose errors carry a reason.
bool FromTransport(const absl::Status& status) {
  return !status.ok() && status.code() != absl::StatusCode::kDeadlineExceeded &&
         request::InfoOf(status).reason == request::ErrorReason::kUnspecified;
}

absl::StatusOr<PrefillEvent> ToEvent(const v1::PrefillResponse& message,
                                     absl::string_view worker) {
  switch (message.message_case()) {
    case v1::PrefillResponse::kAdmitted:
      return dispatch::PrefillAdmitted{
          absl::Milliseconds(message.admitted().eta_ms())};
    case v1::PrefillResponse::kStarted:
      return dispatch::PrefillStarted{};
    case v1::PrefillResponse::kProgress:
      return dispatch::PrefillProgress{message.progress().processed_tokens()};
    case v1::PrefillResponse::kSealed:
      return dispatch::PrefillSealed{
          absl::Microseconds(message.sealed().prefill_us())};
    case v1::PrefillResponse::kVerdict:
      return dispatch::PrefillVerdict{message.verdict().committed()};
    case v1::PrefillResponse::MESSAGE_NOT_SET:
      break;
  }
  return EmptyMessage(worker);
}

dispatch::TokenLogprobs LogprobsFromProto(v1::TokenLogprobs* proto) {
  dispatch::TokenLogprobs out;
  out.token_id = proto->token_id();
  out.logprob = proto->logprob();
  out.token_bytes = std::move(*proto->mutable_token_bytes());
  for (auto& alternative : *proto->mutable_top()) {
    out.top.push_back({alternative.token_id(), alternative.logprob(),
                       std::move(*alternative.mutable_token_bytes())});
  }
  return out;
}

dispatch::DecodeTokens TokensFromProto(v1::Tokens* proto) {
  dispatch::DecodeTokens out;
  out.index = proto->index();
  out.sequence = proto->sequence();
  out.token_ids.assign(proto->token_ids().begin(), proto->token_ids().end());
  out.text = std::move(*proto->mutable_text());
  for (auto& entry : *proto->mutable_logprobs()) {
    out.logprobs.push_back(LogprobsFromProto(&entry));
  }
  return out;
}

absl::StatusOr<DecodeEvent> ToEvent(v1::DecodeResponse* message,
                                    absl::string_view worker) {
  switch (message->message_case()) {
    case v1::DecodeResponse::kReserved:
      return dispatch::DecodeReserved{
          {message->reserved().ticket().SerializeAsString()}};
    case v1::DecodeResponse::kReticketed:
      return dispatch::DecodeReticketed{
          {message->reticketed().ticket().SerializeAsString()},
          message->reticketed().already_committed()};
    case v1::DecodeResponse::kCommitted:
      return dispatch::DecodeCommitted{
          message->committed().attempt(),
          absl::Microseconds(message->committed().commit_us())};
    case v1::DecodeResponse::kTokens:
      return TokensFromProto(message->mutable_tokens());
    case v1::DecodeResponse::kFinished: {
      const v1::SampleFinished& finished = message->finished();
      return dispatch::DecodeSampleFinished{
          finished.index(),
          rpc::FinishReasonFromProto(finished.finish_reason()),
          finished.output_tokens(), finished.events()};
    }
    case v1::DecodeResponse::kHandoffFailed: {
      const v1::HandoffFailed& failed = message->handoff_failed();
      return dispatch::DecodeHandoffFailed{
          failed.attempt(), static_cast<request::ErrorReason>(failed.reason()),
          failed.message()};
    }
    case v1::DecodeResponse::MESSAGE_NOT_SET:
      break;
  }
  return EmptyMessage(worker);
}

class GrpcPrefillLeg final : public dispatch::PrefillLeg {
 public:
  explicit GrpcPrefillLeg(std::shared_ptr<PrefillCall> call)
      : call_(std::move(call)) {}
  ~GrpcPrefillLeg() override {
    if (call_ != nullptr) call_->Cancel();
  }
  void Attach(const dispatch::OpaqueTicket& ticket) override {
    if (call_ == nullptr) return;
    v1::PrefillRequest message;
    // Bytes that were a Ticket a moment ago.
    (void)message.mutable_attach()->mutable_ticket()->ParseFromString(
        ticket.bytes);
    call_->Write(std::move(message));
  }
  void Cancel() override {
    if (call_ != nullptr) call_->Cancel();
  }
  void LetGo() override {
    if (call_ != nullptr) call_->LetGo();
    call_ = nullptr;
  }

 private:
  std::shared_ptr<PrefillCall> call_;
};

class GrpcDecodeLeg final : public dispatch::DecodeLeg {
 public:
  explicit GrpcDecodeLeg(std::shared_ptr<DecodeCall> call)
      : call_(std::move(call)) {}
  ~GrpcDecodeLeg() override {
    if (call_ != nullptr) call_->Cancel();
  }
  void Next() override {
    if (call_ != nullptr) call_->Read();
  }
  void Reticket(Attempt attempt) override {
    if (call_ == nullptr) return;
    v1::DecodeRequest message;
    message.mutable_reticket()->set_attempt(attempt);
    call_->Write(std::move(message));
  }
  void Cancel() override {
    if (call_ != nullptr) call_->Cancel();
  }
  void LetGo() override {
    if (call_ != nullptr) call_->LetGo();
    call_ = nullptr;
  }

 private:
  std::shared_ptr<DecodeCall> call_;
};

}  // namespace

GrpcLegFactory::GrpcLegFactory(const Clock* clock,
                               std::function<std::string()> model_digest)
    : clock_(clock),
      model_digest_(std::move(model_digest)),
      channels_(std::make_shared<ChannelCache>()),
      census_(std::make_shared<CallCensus>()) {}

GrpcLegFactory::~GrpcLegFactory() { Shutdown(absl::Seconds(5)); }

int64_t GrpcLegFactory::live_calls() const { return census_->size(); }

void GrpcLegFactory::Shutdown(absl::Duration limit) {
  census_->CancelAll();
  census_->WaitEmpty(limit);
}

std::unique_ptr<dispatch::PrefillLeg> GrpcLegFactory::StartPrefill(
    const registry::WorkerRef& worker, const dispatch::PrefillStart& start,
    std::function<void(PrefillEvent)> on_event) {
  const std::shared_ptr<grpc::Channel> channel = channels_->Get(worker);
  const std::shared_ptr<v1::PrefillService::Stub> stub =
      v1::PrefillService::NewStub(channel);
  // Prefill says little: it is read as it comes, by a call that knows itself
  // only weakly.
  auto weak_call = std::make_shared<std::weak_ptr<PrefillCall>>();
  auto call = std::make_shared<PrefillCall>(
      census_,
      PrefillCall::Callbacks{.on_message =
                                 [on_event, weak_call, name = worker.name](
                                     v1::PrefillResponse* message) {
                                   absl::StatusOr<PrefillEvent> event =
                                       ToEvent(*message, name);
                                   if (!event.ok()) return event.status();
                                   on_event(*std::move(event));
                                   if (const auto self = weak_call->lock())
                                     self->Read();
                                   return absl::OkStatus();
                                 },
                             // The stub lives as long as the call needs it.
                             .on_end =
                                 [channels = channels_, on_event, worker,
                                  channel, stub](const absl::Status& status) {
                                   if (FromTransport(status))
                                     channels->Drop(worker, channel);
                                   on_event(LegEnded{status});
                                 }});
  *weak_call = call;

  call->Start(start.deadline - clock_->Now(),
              [&](grpc::ClientContext* context, PrefillCall* reactor) {
                stub->async()->Prefill(context, reactor);
              });
  v1::PrefillRequest message;
  auto* const admit = message.mutable_admit();
  admit->set_request_id(ToBytes(start.request));
  *admit->mutable_handoff() = rpc::HandoffToProto(start.handoff, start.attempt);
  admit->mutable_prompt_ids()->Add(start.prompt_ids->begin(),
                                   start.prompt_ids->end());
  admit->set_prompt_hash(BytesOf(start.prompt_hash));
  admit->set_model_digest(model_digest_());
  call->Write(std::move(message));
  call->Read();
  return std::make_unique<GrpcPrefillLeg>(std::move(call));
}

std::unique_ptr<dispatch::DecodeLeg> GrpcLegFactory::StartDecode(
    const registry::WorkerRef& worker, const dispatch::DecodeStart& start,
    std::function<void(DecodeEvent)> on_event) {
  const std::shared_ptr<grpc::Channel> channel = channels_->Get(worker);
  const std::shared_ptr<v1::DecodeService::Stub> stub =
      v1::DecodeService::NewStub(channel);
  auto call = std::make_shared<DecodeCall>(
      census_,
      DecodeCall::Callbacks{
          .on_message =
              [on_event, name = worker.name](v1::DecodeResponse* message) {
                absl::StatusOr<DecodeEvent> event = ToEvent(message, name);
                if (!event.ok()) return event.status();
                on_event(*std::move(event));
                return absl::OkStatus();
              },
          .on_end =
              [channels = channels_, on_event, worker, channel,
               stub](const absl::Status& status) {
                if (FromTransport(status)) channels->Drop(worker, channel);
                on_event(LegEnded{status});
              }});

  call->Start(start.deadline - clock_->Now(),
              [&](grpc::ClientContext* context, DecodeCall* reactor) {
                stub->async()->Decode(context, reactor);
              });
  v1::DecodeRequest message;
  v1::DecodeStart* const proto = message.mutable_start();
  proto->set_request_id(ToBytes(start.request));
  proto->set_handoff_id(ToBytes(start.handoff));
  proto->mutable_prompt_ids()->Add(start.prompt_ids->begin(),
                                   start.prompt_ids->end());
  proto->set_prompt_hash(BytesOf(start.prompt_hash));
  *proto->mutable_sampling() = rpc::SamplingToProto(start.sampling);
  if (start.logprobs.has_value()) proto->set_logprobs(*start.logprobs);
  proto->set_model_digest(model_digest_());
  call->Write(std::move(message));
  return std::make_unique<GrpcDecodeLeg>(std::move(call));
}

}  // namespace baton::router::legs
