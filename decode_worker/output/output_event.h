// What a decode call is told, in the order in which it is written.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/handoff/ticket.h"
#include "common/request/request.h"

namespace baton::decode_worker {

struct ReservedEvent {
  handoff::Ticket ticket;
};
struct ReticketedEvent {
  handoff::Ticket ticket = {};  // unset when already_committed
  bool already_committed = false;
};
struct CommittedEvent {
  Attempt attempt = 0;
  int64_t receive_us = 0;
  int64_t commit_us = 0;
};
struct HandoffFailedEvent {
  Attempt attempt = 0;
  absl::Status status;
};

struct LogprobEntry {
  int32_t token_id = 0;
  float logprob = 0.0F;
  std::string token_bytes = {};
};
struct TokenLogprobs {
  LogprobEntry token;
  std::vector<LogprobEntry> top;  // best first
};
struct TokensEvent {
  int32_t index = 0;
  int64_t sequence = 0;  // from 0 without gaps within the sample
  std::vector<int32_t> token_ids = {};
  std::string text = {};                     // valid UTF-8
  std::vector<TokenLogprobs> logprobs = {};  // one per id, or empty
};
struct SampleFinishedEvent {
  int32_t index = 0;
  request::FinishReason reason = request::FinishReason::kStop;
  int32_t output_tokens = 0;
  int64_t events = 0;
};
// The last one. OK only after a SampleFinishedEvent of each sample.
struct EndEvent {
  absl::Status status;
};

using ControlEvent = std::variant<ReservedEvent, ReticketedEvent,
                                  CommittedEvent, HandoffFailedEvent>;
using OutputEvent = std::variant<ReservedEvent, ReticketedEvent, CommittedEvent,
                                 HandoffFailedEvent, TokensEvent,
                                 SampleFinishedEvent, EndEvent>;

}  // namespace baton::decode_worker
