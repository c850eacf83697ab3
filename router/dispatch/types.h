// What dispatch knows of a request and of the events of its legs, apart from
// the wire format. Ids of tokens are int32, times are absl, sizes are counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/request/request.h"

namespace baton::router::dispatch {

// A receiver's promise as it came from the decode worker (a serialised
// baton.v1.Ticket): the router hands it on and never looks inside.
struct OpaqueTicket {
  std::string bytes;
};

// Positions of a block (glossary).
inline constexpr int64_t kBlockTokens = 256;

// A request that passed validation.
struct RequestSpec {
  RequestId id;
  std::string label;  // the client's request_id, for logs only
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  Sha256Digest prompt_hash{};
  request::SamplingParams sampling;  // every field effective
  std::optional<int32_t> logprobs;
  bool return_token_ids = false;
  std::string pinned_prefill;  // empty: any
  std::string pinned_decode;   // empty: any
  absl::Time accepted;         // by the router's Clock
  absl::Time deadline;         // by the router's Clock, always finite

  int32_t prompt_tokens() const {
    return static_cast<int32_t>(prompt_ids->size());
  }
  // Positions that each sample occupies at most.
  int64_t positions() const {
    return request::PositionsFor(prompt_tokens(), sampling.max_tokens);
  }
  // Blocks of all samples at decode: full prompt blocks are shared.
  int64_t blocks() const {
    const int64_t shared = prompt_tokens() / kBlockTokens;
    const int64_t each = (positions() + kBlockTokens - 1) / kBlockTokens;
    return shared + sampling.n * (each - shared);
  }
};

struct Alternative {
  int32_t token_id = 0;
  float logprob = 0.0F;
  std::string token_bytes;
};

struct TokenLogprobs {
  int32_t token_id = 0;
  float logprob = 0.0F;
  std::string token_bytes;
  std::vector<Alternative> top;
};

// Microseconds; the first four add up to first_token_us.
struct Timeline {
  int64_t queue_us = 0;
  int64_t prefill_us = 0;
  int64_t transfer_us = 0;
  int64_t first_decode_us = 0;
  int64_t first_token_us = 0;
  int64_t total_us = 0;
};

// --- Events of the prefill leg ----------------------------------------------
struct PrefillAdmitted {
  absl::Duration eta;
};
struct PrefillStarted {};
struct PrefillProgress {
  int32_t processed_tokens = 0;
};
struct PrefillSealed {
  absl::Duration prefill;  // admission to the last chunk's end
};
struct PrefillVerdict {
  bool committed = false;
};
// The call is over; always the last event of a leg, exactly once.
struct LegEnded {
  absl::Status status;
};
using PrefillEvent =
    std::variant<PrefillAdmitted, PrefillStarted, PrefillProgress,
                 PrefillSealed, PrefillVerdict, LegEnded>;

// --- Events of the decode leg -----------------------------------------------
struct DecodeReserved {
  OpaqueTicket ticket;
};
struct DecodeReticketed {
  OpaqueTicket ticket;
  bool already_committed = false;
};
struct DecodeCommitted {
  Attempt attempt = 0;
  absl::Duration commit;  // seal's arrival to commit
};
struct DecodeTokens {
  int32_t index = 0;
  int64_t sequence = 0;
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
};
struct DecodeSampleFinished {
  int32_t index = 0;
  request::FinishReason reason = request::FinishReason::kError;
  int32_t output_tokens = 0;
  int64_t events = 0;
};
struct DecodeHandoffFailed {
  Attempt attempt = 0;
  request::ErrorReason reason = request::ErrorReason::kUnspecified;
  std::string message;
};
using DecodeEvent =
    std::variant<DecodeReserved, DecodeReticketed, DecodeCommitted,
                 DecodeTokens, DecodeSampleFinished, DecodeHandoffFailed,
                 LegEnded>;

// --- Events to the client ---------------------------------------------------
struct ClientStarted {
  std::string prefill_worker;
  std::string decode_worker;
};
struct ClientDelta {
  int32_t index = 0;
  int64_t sequence = 0;
  std::string text;
  std::vector<int32_t> token_ids;  // empty unless asked for
  std::vector<TokenLogprobs> logprobs;
};
struct ClientFinished {
  int32_t index = 0;
  request::FinishReason reason = request::FinishReason::kError;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;  // of this sample
  Timeline timeline;
};
using ClientEvent = std::variant<ClientStarted, ClientDelta, ClientFinished>;

}  // namespace baton::router::dispatch
