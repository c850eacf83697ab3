#include "decode_worker/service/convert.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/handoff/ticket_proto.h"
#include "common/rpc/convert.h"

namespace baton::decode_worker {
namespace {

template <typename Id>
absl::StatusOr<Id> IdFromBytes(const std::string& bytes,
                               absl::string_view field) {
  absl::StatusOr<Id> id = FromBytes<Id>(bytes);
  if (!id.ok()) return request::InvalidField(field, id.status().message());
  if (id->is_zero()) return request::InvalidField(field, "is zero");
  return id;
}

void Fill(const LogprobEntry& entry, v1::TokenLogprobs* out) {
  out->set_token_id(entry.token_id);
  out->set_logprob(entry.logprob);
  out->set_token_bytes(entry.token_bytes);
}

// One overload per event.
struct ToProto {
  v1::DecodeResponse* out;

  void operator()(const ReservedEvent& event) const {
    *out->mutable_reserved()->mutable_ticket() =
        handoff::TicketToProto(event.ticket);
  }
  void operator()(const ReticketedEvent& event) const {
    v1::Reticketed* const proto = out->mutable_reticketed();
    proto->set_already_committed(event.already_committed);
    if (!event.already_committed) {
      *proto->mutable_ticket() = handoff::TicketToProto(event.ticket);
    }
  }
  void operator()(const CommittedEvent& event) const {
    v1::Committed* const proto = out->mutable_committed();
    proto->set_attempt(event.attempt);
    proto->set_receive_us(event.receive_us);
    proto->set_commit_us(event.commit_us);
  }
  void operator()(const HandoffFailedEvent& event) const {
    v1::HandoffFailed* const proto = out->mutable_handoff_failed();
    proto->set_attempt(event.attempt);
    proto->set_reason(
        static_cast<v1::ErrorReason>(request::InfoOf(event.status).reason));
    proto->set_message(std::string(event.status.message()));
  }
  void operator()(const TokensEvent& event) const {
    v1::Tokens* const proto = out->mutable_tokens();
    proto->set_index(event.index);
    proto->set_sequence(event.sequence);
    proto->mutable_token_ids()->Assign(event.token_ids.begin(),
                                       event.token_ids.end());
    proto->set_text(event.text);
    for (const TokenLogprobs& logprobs : event.logprobs) {
      v1::TokenLogprobs* const token = proto->add_logprobs();
      Fill(logprobs.token, token);
      for (const LogprobEntry& entry : logprobs.top) {
        v1::TokenLogprobs::Alternative* const top = token->add_top();
        top->set_token_id(entry.token_id);
        top->set_logprob(entry.logprob);
        top->set_token_bytes(entry.token_bytes);
      }
    }
  }
  void operator()(const SampleFinishedEvent& event) const {
    v1::SampleFinished* const proto = out->mutable_finished();
    proto->set_index(event.index);
    proto->set_finish_reason(rpc::FinishReasonToProto(event.reason));
    proto->set_output_tokens(event.output_tokens);
    proto->set_events(event.events);
  }
  void operator()(const EndEvent&) const {
    CHECK(false) << "the end of a call is its status, not a message";
  }
};

}  // namespace

absl::StatusOr<StartRequest> StartFromProto(const v1::DecodeStart& proto,
                                            absl::Time deadline) {
  StartRequest start;
  ASSIGN_OR_RETURN(start.request,
                   IdFromBytes<RequestId>(proto.request_id(), "request_id"));
  ASSIGN_OR_RETURN(start.handoff,
                   IdFromBytes<HandoffId>(proto.handoff_id(), "handoff_id"));
  start.prompt_ids.assign(proto.prompt_ids().begin(), proto.prompt_ids().end());
  ASSIGN_OR_RETURN(start.prompt_hash,
                   rpc::DigestFromBytes(proto.prompt_hash(), "prompt_hash"));
  ASSIGN_OR_RETURN(start.model_digest,
                   rpc::DigestFromBytes(proto.model_digest(), "model_digest"));
  for (const v1::TokenIds& ids : proto.resume_output_ids()) {
    start.resume_tokens += ids.ids_size();
  }
  // The router fills every default in; what it left out anyway is refused by
  // the range checks where our default is no legal value (max_tokens).
  start.sampling =
      rpc::SamplingFromProto(proto.sampling(), request::SamplingParams());
  if (proto.has_logprobs()) start.logprobs = proto.logprobs();
  start.deadline = deadline;
  return start;
}

void EventToProto(const OutputEvent& event, v1::DecodeResponse* out) {
  out->Clear();
  std::visit(ToProto{out}, event);
}

}  // namespace baton::decode_worker
