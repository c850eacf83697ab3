#include "decode_worker/scheduler/start_request.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::decode_worker {
namespace {

using request::ErrorReason;

absl::Status Mismatch(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kFailedPrecondition, message,
                            {.reason = ErrorReason::kMismatch, .field = ""});
}

absl::Status CheckPrompt(const StartLimits& limits, const StartRequest& start) {
  if (start.prompt_ids.empty()) {
    return request::InvalidField("prompt_ids", "empty, expected >= 1 token");
  }
  for (size_t i = 0; i < start.prompt_ids.size(); ++i) {
    const int32_t id = start.prompt_ids[i];
    if (id < 0 || id >= limits.vocab_size) {
      return request::InvalidField(
          "prompt_ids",
          absl::StrCat("id ", id, " at position ", i, ", expected 0 to ",
                       limits.vocab_size - 1));
    }
  }
  const Sha256Digest hash = HashTokenIds(start.prompt_ids);
  if (hash != start.prompt_hash) {
    return Mismatch(absl::StrCat("prompt_hash is ", HexOf(start.prompt_hash),
                                 ", the ids that arrived have ", HexOf(hash)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareStart(const StartLimits& limits, StartRequest* start) {
  if (start->model_digest != limits.model_digest) {
    return Mismatch(
        absl::StrCat("router expects model ", HexOf(start->model_digest),
                     ", this worker serves ", HexOf(limits.model_digest)));
  }
  if (start->resume_tokens > 0) {
    return request::MakeError(
        absl::StatusCode::kUnimplemented,
        absl::StrCat("resume_output_ids holds ", start->resume_tokens,
                     " ids; this version starts sequences from their prompt "
                     "only"),
        {.reason = ErrorReason::kUnsupported, .field = "resume_output_ids"});
  }
  RETURN_IF_ERROR(CheckPrompt(limits, *start));
  RETURN_IF_ERROR(
      request::ValidateSampling(start->sampling, limits.vocab_size));
  if (start->logprobs.has_value() &&
      (*start->logprobs < 0 || *start->logprobs > request::kMaxLogprobs)) {
    return request::InvalidField(
        "logprobs", absl::StrCat(*start->logprobs, ", expected 0 to ",
                                 request::kMaxLogprobs));
  }
  if (start->sampling.stop.empty()) return absl::OkStatus();
  if (!limits.has_tokenizer) {
    return request::InvalidField(
        "stop", "this model has no tokenizer, expected stop_token_ids");
  }
  ASSIGN_OR_RETURN(start->stop_set,
                   tokenizer::StopSet::Create(start->sampling.stop));
  return absl::OkStatus();
}

}  // namespace baton::decode_worker
