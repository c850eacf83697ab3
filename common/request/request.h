// What a request is, apart from any wire format: sampling settings, limits,
// finish reasons, usage and typed error reasons.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::request {

// Effective values: every field is set once the router has filled the defaults
// in. Ranges: ValidateSampling.
struct SamplingParams {
  float temperature = 1.0F;         // >= 0; 0 is greedy
  float top_p = 1.0F;               // (0, 1]
  int32_t top_k = 0;                // >= 0; 0 keeps all
  float min_p = 0.0F;               // [0, 1)
  float repetition_penalty = 1.0F;  // > 0
  float presence_penalty = 0.0F;    // [-2, 2]
  float frequency_penalty = 0.0F;   // [-2, 2]
  uint64_t seed = 0;
  int32_t max_tokens = 0;  // >= 1
  int32_t min_tokens = 0;  // 0 .. max_tokens
  bool ignore_eos = false;
  int32_t n = 1;                        // 1 .. kMaxSamples
  std::vector<std::string> stop;        // at most kMaxStopStrings
  std::vector<int32_t> stop_token_ids;  // within the vocabulary
};

inline constexpr int32_t kMaxSamples = 64;
inline constexpr int32_t kMaxStopStrings = 64;
inline constexpr int32_t kMaxStopStringBytes = 1024;
inline constexpr int32_t kMaxStopTokenIds = 256;
inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr int32_t kMaxRequestIdBytes = 256;
inline constexpr int32_t kDefaultMaxTokens = 4096;

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
absl::string_view FinishReasonName(FinishReason reason);

// Kinds of failure, one to one with baton.v1.ErrorReason; carried as a payload
// of absl::Status so that nobody parses message text.
enum class ErrorReason : int32_t {
  kUnspecified = 0,
  kInvalidField = 1,
  kContextExceeded = 2,
  kNeverFits = 3,
  kOverloaded = 4,
  kWorkerLost = 5,
  kNoWorker = 6,
  kDeadline = 7,
  kCancelled = 8,
  kSlowReader = 9,
  kMismatch = 10,
  kHandoffRejected = 11,
  kStale = 12,
  kUnsupported = 13,
  kDraining = 14,
  kBug = 15,
};
// "handoff_rejected": label values and logs.
absl::string_view ErrorReasonName(ErrorReason reason);

struct ErrorInfo {
  ErrorReason reason = ErrorReason::kUnspecified;
  std::string field;
  int64_t retry_delay_ms = 0;
};

// A status that carries `info`; InfoOf reads it back (kUnspecified without).
absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const ErrorInfo& info);
// INVALID_ARGUMENT with kInvalidField and the field's name in the message.
absl::Status InvalidField(absl::string_view field, absl::string_view message);
ErrorInfo InfoOf(const absl::Status& status);

// Checks every range against the vocabulary; the error names the field, the
// value and what is accepted. NaN never passes.
absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab_size);

// Positions that one sample occupies: prompt + max_tokens - 1 (the last token
// is never fed back).
inline int64_t PositionsFor(int64_t prompt_tokens, int64_t max_tokens) {
  return prompt_tokens + max_tokens - 1;
}

}  // namespace baton::request
