// A request as its call brings it, and what is checked at the door.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/request/request.h"
#include "common/tokenizer/stop_matcher.h"

namespace baton::decode_worker {

struct StartRequest {
  RequestId request;
  HandoffId handoff;
  std::vector<int32_t> prompt_ids;
  Sha256Digest prompt_hash{};
  Sha256Digest model_digest{};
  // Output ids that were delivered before a loss, over all samples.
  int64_t resume_tokens = 0;
  request::SamplingParams sampling;
  std::optional<int32_t> logprobs;
  std::shared_ptr<const tokenizer::StopSet> stop_set;  // PrepareStart sets it
  absl::Time deadline = absl::InfiniteFuture();
};

struct StartLimits {
  int32_t vocab_size = 0;
  Sha256Digest model_digest{};
  bool has_tokenizer = true;
};

// Checks everything that does not depend on the state of the worker, and builds
// the stop set. Pure; runs on the caller's thread so that a long prompt does
// not hold up the step loop. INVALID_ARGUMENT names the field;
// FAILED_PRECONDITION with kMismatch: other model, or the prompt is not the one
// that its hash was made of; UNIMPLEMENTED with kUnsupported: resume ids.
absl::Status PrepareStart(const StartLimits& limits, StartRequest* start);

}  // namespace baton::decode_worker
