#include "common/request/request.h"

#include <cmath>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace baton::request {
namespace {

constexpr char kPayloadUrl[] = "baton.v1/error";

// False for NaN whatever the bounds.
bool Within(float value, float low, float high) {
  return value >= low && value <= high;
}

}  // namespace

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

absl::string_view ErrorReasonName(ErrorReason reason) {
  switch (reason) {
    case ErrorReason::kUnspecified:
      return "unspecified";
    case ErrorReason::kInvalidField:
      return "invalid_field";
    case ErrorReason::kContextExceeded:
      return "context_exceeded";
    case ErrorReason::kNeverFits:
      return "never_fits";
    case ErrorReason::kOverloaded:
      return "overloaded";
    case ErrorReason::kWorkerLost:
      return "worker_lost";
    case ErrorReason::kNoWorker:
      return "no_worker";
    case ErrorReason::kDeadline:
      return "deadline";
    case ErrorReason::kCancelled:
      return "cancelled";
    case ErrorReason::kSlowReader:
      return "slow_reader";
    case ErrorReason::kMismatch:
      return "mismatch";
    case ErrorReason::kHandoffRejected:
      return "handoff_rejected";
    case ErrorReason::kStale:
      return "stale";
    case ErrorReason::kUnsupported:
      return "unsupported";
    case ErrorReason::kDraining:
      return "draining";
    case ErrorReason::kBug:
      return "bug";
  }
  return "unspecified";
}

absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const ErrorInfo& info) {
  absl::Status status(code, message);
  status.SetPayload(kPayloadUrl, absl::Cord(absl::StrCat(
                                     static_cast<int32_t>(info.reason), " ",
                                     info.retry_delay_ms, " ", info.field)));
  return status;
}

absl::Status InvalidField(absl::string_view field, absl::string_view message) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", message),
      {.reason = ErrorReason::kInvalidField, .field = std::string(field)});
}

ErrorInfo InfoOf(const absl::Status& status) {
  ErrorInfo info;
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return info;
  const std::string text(*payload);
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 2));
  int32_t reason = 0;
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &reason) &&
      absl::SimpleAtoi(parts[1], &info.retry_delay_ms)) {
    info.reason = static_cast<ErrorReason>(reason);
    info.field = parts[2];
  }
  return info;
}

absl::Status ValidateSampling(const SamplingParams& p, int32_t vocab_size) {
  if (!Within(p.temperature, 0.0F, 100.0F)) {
    return InvalidField("temperature",
                        absl::StrCat(p.temperature, ", expected 0 to 100"));
  }
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F)) {
    return InvalidField("top_p", absl::StrCat(p.top_p,
                                              ", expected more than 0 and at "
                                              "most 1"));
  }
  if (p.top_k < 0) {
    return InvalidField("top_k", absl::StrCat(p.top_k, ", expected >= 0"));
  }
  if (!(p.min_p >= 0.0F && p.min_p < 1.0F)) {
    return InvalidField("min_p", absl::StrCat(p.min_p,
                                              ", expected at least 0 and less "
                                              "than 1"));
  }
  if (!(p.repetition_penalty > 0.0F && p.repetition_penalty <= 100.0F)) {
    return InvalidField("repetition_penalty",
                        absl::StrCat(p.repetition_penalty,
                                     ", expected more than 0 and at most "
                                     "100"));
  }
  if (!Within(p.presence_penalty, -2.0F, 2.0F)) {
    return InvalidField("presence_penalty",
                        absl::StrCat(p.presence_penalty, ", expected -2 to 2"));
  }
  if (!Within(p.frequency_penalty, -2.0F, 2.0F)) {
    return InvalidField(
        "frequency_penalty",
        absl::StrCat(p.frequency_penalty, ", expected -2 to 2"));
  }
  if (p.max_tokens < 1) {
    return InvalidField("max_tokens",
                        absl::StrCat(p.max_tokens, ", expected >= 1"));
  }
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) {
    return InvalidField("min_tokens", absl::StrCat(p.min_tokens,
                                                   ", expected 0 to max_tokens "
                                                   "(",
                                                   p.max_tokens, ")"));
  }
  if (p.n < 1 || p.n > kMaxSamples) {
    return InvalidField("n",
                        absl::StrCat(p.n, ", expected 1 to ", kMaxSamples));
  }
  if (p.stop.size() > static_cast<size_t>(kMaxStopStrings)) {
    return InvalidField(
        "stop",
        absl::StrCat(p.stop.size(), " strings, at most ", kMaxStopStrings));
  }
  for (const std::string& stop : p.stop) {
    if (stop.empty() ||
        stop.size() > static_cast<size_t>(kMaxStopStringBytes)) {
      return InvalidField(
          "stop", absl::StrCat("a string of ", stop.size(),
                               " bytes, expected 1 to ", kMaxStopStringBytes));
    }
  }
  if (p.stop_token_ids.size() > static_cast<size_t>(kMaxStopTokenIds)) {
    return InvalidField("stop_token_ids",
                        absl::StrCat(p.stop_token_ids.size(), " ids, at most ",
                                     kMaxStopTokenIds));
  }
  for (const int32_t id : p.stop_token_ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidField(
          "stop_token_ids",
          absl::StrCat("id ", id, ", expected 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::request
