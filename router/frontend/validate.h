// From a GenerateRequest to a RequestSpec: every limit is checked here, and the
// error names the field and what was expected.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/base/random.h"
#include "common/chat/chat_encoder.h"
#include "common/tokenizer/tokenizer.h"
#include "router/dispatch/types.h"
#include "router/frontend/model_facts.h"
#include "router/registry/worker.h"

namespace baton::router::frontend {

struct RequestLimits {
  // Text of a prompt or a conversation.
  int64_t max_prompt_bytes = int64_t{8} << 20;
  // Deadline of requests that come without one, and the longest that counts.
  absl::Duration default_deadline = absl::Minutes(10);
  absl::Duration max_deadline = absl::Hours(1);
  // Whether a client may choose workers.
  bool allow_placement = false;
};

// Thread-safe; everything it points to outlives it. Tokenizer and encoder are
// null for a checkpoint without tokenizer.json: token ids only.
class Validator final {
 public:
  Validator(const ModelFacts& facts, const RequestLimits& limits,
            const tokenizer::Tokenizer* tokenizer,
            const chat::ChatEncoder* chat_encoder, Random* random)
      : facts_(facts),
        limits_(limits),
        tokenizer_(tokenizer),
        chat_encoder_(chat_encoder),
        random_(random) {}

  // Deadline of a request accepted `now` whose client left it `time_left`
  // (infinite: no deadline). DEADLINE_EXCEEDED when nothing is left.
  absl::StatusOr<absl::Time> Deadline(absl::Time now,
                                      absl::Duration time_left) const;

  // Everything but accepted and deadline. `workers` bounds what can ever fit.
  // INVALID_ARGUMENT with kInvalidField, kContextExceeded, kNeverFits or
  // kUnsupported. Tokenises: O(n log n) in the text.
  absl::StatusOr<dispatch::RequestSpec> MakeSpec(
      const v1::GenerateRequest& request,
      const registry::Snapshot& workers) const;

 private:
  absl::StatusOr<std::vector<int32_t>> Encode(
      const v1::GenerateRequest& request) const;
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const v1::Chat& chat) const;
  absl::Status CheckTokenIds(const v1::TokenIds& ids) const;
  absl::StatusOr<request::SamplingParams> Sampling(
      const v1::GenerateRequest& request, int64_t prompt_tokens,
      const registry::Snapshot& workers) const;

  const ModelFacts facts_;
  const RequestLimits limits_;
  const tokenizer::Tokenizer* const tokenizer_;
  const chat::ChatEncoder* const chat_encoder_;
  Random* const random_;
};

}  // namespace baton::router::frontend
