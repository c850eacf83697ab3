#include "router/frontend/generate_reactor.h"

#include <grpc/grpc.h>

#include <utility>
#include <variant>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "router/frontend/request_parser.h"

namespace baton::router::frontend {
namespace {

void LogprobsToProto(const dispatch::TokenLogprobs& logprobs,
                     v1::TokenLogprobs* out) {
  out->set_token_id(logprobs.token_id);
  out->set_logprob(logprobs.logprob);
  out->set_token_bytes(logprobs.token_bytes);
  for (const dispatch::Alternative& alternative : logprobs.top) {
    v1::TokenLogprobs::Alternative* const top = out->add_top();
    top->set_token_id(alternative.token_id);
    top->set_logprob(alternative.logprob);
    top->set_token_bytes(alternative.token_bytes);
  }
}

void ToProto(const dispatch::ClientStarted& event, v1::GenerateResponse* out) {
  out->mutable_started()->set_prefill_worker(event.prefill_worker);
  out->mutable_started()->set_decode_worker(event.decode_worker);
}

void ToProto(const dispatch::ClientDelta& event, v1::GenerateResponse* out) {
  v1::Delta* const delta = out->mutable_delta();
  delta->set_index(event.index);
  delta->set_sequence(event.sequence);
  delta->set_text(event.text);
  delta->mutable_token_ids()->Add(event.token_ids.begin(),
                                  event.token_ids.end());
  for (const dispatch::TokenLogprobs& entry : event.logprobs) {
    LogprobsToProto(entry, delta->add_logprobs());
  }
}

void ToProto(const dispatch::ClientFinished& event, v1::GenerateResponse* out) {
  v1::Finished* const finished = out->mutable_finished();
  finished->set_index(event.index);
  finished->set_finish_reason(rpc::FinishReasonToProto(event.reason));
  finished->mutable_usage()->set_prompt_tokens(event.prompt_tokens);
  finished->mutable_usage()->set_output_tokens(event.output_tokens);
  finished->mutable_usage()->set_cached_tokens(0);
  v1::Timeline* const timeline = finished->mutable_timeline();
  timeline->set_queue_us(event.timeline.queue_us);
  timeline->set_prefill_us(event.timeline.prefill_us);
  timeline->set_transfer_us(event.timeline.transfer_us);
  timeline->set_first_decode_us(event.timeline.first_decode_us);
  timeline->set_first_token_us(event.timeline.first_token_us);
  timeline->set_total_us(event.timeline.total_us);
}

}  // namespace

v1::GenerateResponse ResponseFromEvent(const dispatch::ClientEvent& event) {
  v1::GenerateResponse out;
  std::visit([&out](const auto& e) { ToProto(e, &out); }, event);
  return out;
}

void GenerateReactor::Begin() {
  if (!deps_->run->queue->TryArrive()) {
    FinishEarly(dispatch::Overloaded(
        "this router has as many requests running and waiting as it takes",
        deps_->run->options, deps_->run->random));
    return;
  }
  deps_->pool->Post([this] { MakeRun(); });
}

void GenerateReactor::FinishEarly(const absl::Status& status) {
  const absl::Duration duration = deps_->run->clock->Now() - accepted_;
  deps_->run->metrics->RequestEnded(status, duration);
  LogInfo("request_refused", {{"outcome", metrics::OutcomeOf(status)},
                              {"code", absl::StatusCodeToString(status.code())},
                              {"message", status.message()}});
  Finish(status);
}

absl::StatusOr<dispatch::RequestSpec> GenerateReactor::Parse() {
  ASSIGN_OR_RETURN(
      const absl::Time deadline,
      deps_->validator->Deadline(accepted_, rpc::TimeLeft(*context_)));
  std::vector<grpc::Slice> slices;
  if (!request_.Dump(&slices).ok()) {
    return request::InvalidField("request", "unreadable bytes");
  }
  std::string bytes;
  bytes.reserve(request_.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  request_.Clear();
  ASSIGN_OR_RETURN(const v1::GenerateRequest message,
                   ParseGenerateRequest(bytes));
  ASSIGN_OR_RETURN(
      dispatch::RequestSpec spec,
      deps_->validator->MakeSpec(message, *deps_->run->registry->snapshot()));
  spec.accepted = accepted_;
  spec.deadline = deadline;
  return spec;
}

void GenerateReactor::MakeRun() {
  absl::StatusOr<dispatch::RequestSpec> spec = Parse();
  if (!spec.ok()) {
    deps_->run->queue->Leave(nullptr);
    FinishEarly(spec.status());
    return;
  }
  started_.set_id(ToHex(spec->id));
  started_.set_prompt_tokens(spec->prompt_tokens());
  started_.set_prompt_hash(BytesOf(spec->prompt_hash));
  *started_.mutable_sampling() = rpc::SamplingToProto(spec->sampling);
  const std::shared_ptr<dispatch::Run> run =
      dispatch::Run::Create(deps_->run, *std::move(spec), this);
  deps_->table->Add(run);
  bool cancelled = false;
  {
    MutexLock lock(&mu_);
    run_ = run;
    cancelled = cancelled_;
  }
  // After Start the reactor may be gone: only the run is used.
  if (cancelled) run->ClientGone();
  run->Start();
}

void GenerateReactor::Write(const dispatch::ClientEvent& event) {
  v1::GenerateResponse message = ResponseFromEvent(event);
  if (message.has_started()) {
    started_.set_prefill_worker(message.started().prefill_worker());
    started_.set_decode_worker(message.started().decode_worker());
    *message.mutable_started() = started_;
  }
  response_.Clear();
  bool own_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<v1::GenerateResponse>::Serialize(
          message, &response_, &own_buffer);
  if (!status.ok()) ReportBug("router.frontend", status.error_message());
  StartWrite(&response_);
}

void GenerateReactor::Cut(const absl::Status& why) {
  // Trailers of a cancelled call are not held back by flow control, so that the
  // client learns why once it reads.
  grpc_call_cancel_with_status(
      context_->c_call(), static_cast<grpc_status_code>(why.code()),
      std::string(why.message()).c_str(), /*reserved=*/nullptr);
}

void GenerateReactor::Finish(const absl::Status& status) {
  grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(rpc::ToGrpc(status));
}

void GenerateReactor::OnWriteDone(bool ok) {
  std::shared_ptr<dispatch::Run> run;
  {
    MutexLock lock(&mu_);
    run = run_;
  }
  run->OnWriteDone(ok);
}

void GenerateReactor::OnCancel() {
  std::shared_ptr<dispatch::Run> run;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    run = run_;
  }
  if (run != nullptr) run->ClientGone();
}

void GenerateReactor::OnDone() { delete this; }

}  // namespace baton::router::frontend
