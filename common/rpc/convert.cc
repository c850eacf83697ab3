#include "common/rpc/convert.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::rpc {

request::SamplingParams SamplingFromProto(
    const v1::SamplingParams& proto, const request::SamplingParams& defaults) {
  request::SamplingParams out = defaults;
  if (proto.has_temperature()) out.temperature = proto.temperature();
  if (proto.has_top_p()) out.top_p = proto.top_p();
  if (proto.has_top_k()) out.top_k = proto.top_k();
  if (proto.has_min_p()) out.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) {
    out.repetition_penalty = proto.repetition_penalty();
  }
  if (proto.has_presence_penalty()) {
    out.presence_penalty = proto.presence_penalty();
  }
  if (proto.has_frequency_penalty()) {
    out.frequency_penalty = proto.frequency_penalty();
  }
  if (proto.has_seed()) out.seed = proto.seed();
  if (proto.has_max_tokens()) out.max_tokens = proto.max_tokens();
  if (proto.has_min_tokens()) out.min_tokens = proto.min_tokens();
  if (proto.has_ignore_eos()) out.ignore_eos = proto.ignore_eos();
  if (proto.has_n()) out.n = proto.n();
  if (proto.stop_size() > 0) {
    out.stop.assign(proto.stop().begin(), proto.stop().end());
  }
  if (proto.stop_token_ids_size() > 0) {
    out.stop_token_ids.assign(proto.stop_token_ids().begin(),
                              proto.stop_token_ids().end());
  }
  return out;
}

v1::SamplingParams SamplingToProto(const request::SamplingParams& params) {
  v1::SamplingParams out;
  out.set_temperature(params.temperature);
  out.set_top_p(params.top_p);
  out.set_top_k(params.top_k);
  out.set_min_p(params.min_p);
  out.set_repetition_penalty(params.repetition_penalty);
  out.set_presence_penalty(params.presence_penalty);
  out.set_frequency_penalty(params.frequency_penalty);
  out.set_seed(params.seed);
  out.set_max_tokens(params.max_tokens);
  out.set_min_tokens(params.min_tokens);
  out.set_ignore_eos(params.ignore_eos);
  out.set_n(params.n);
  for (const std::string& stop : params.stop) out.add_stop(stop);
  for (const int32_t id : params.stop_token_ids) out.add_stop_token_ids(id);
  return out;
}

v1::FinishReason FinishReasonToProto(request::FinishReason reason) {
  switch (reason) {
    case request::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case request::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case request::FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case request::FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

request::FinishReason FinishReasonFromProto(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return request::FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return request::FinishReason::kLength;
    case v1::FINISH_REASON_CANCELLED:
      return request::FinishReason::kCancelled;
    default:
      return request::FinishReason::kError;
  }
}

v1::HandoffRef HandoffToProto(HandoffId handoff, Attempt attempt) {
  v1::HandoffRef out;
  out.set_handoff_id(ToBytes(handoff));
  out.set_attempt(attempt);
  return out;
}

absl::StatusOr<HandoffKey> HandoffFromProto(const v1::HandoffRef& proto) {
  ASSIGN_OR_RETURN(const HandoffId id,
                   FromBytes<HandoffId>(proto.handoff_id()));
  if (id.is_zero()) return request::InvalidField("handoff_id", "is zero");
  if (proto.attempt() < 1) {
    return request::InvalidField(
        "attempt", absl::StrCat(proto.attempt(), ", expected >= 1"));
  }
  return HandoffKey{id, proto.attempt()};
}

absl::StatusOr<Sha256Digest> DigestFromBytes(absl::string_view bytes,
                                             absl::string_view field) {
  Sha256Digest out;
  if (bytes.size() != out.size()) {
    return request::InvalidField(
        field, absl::StrCat(bytes.size(), " bytes, expected ", out.size()));
  }
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

}  // namespace baton::rpc
