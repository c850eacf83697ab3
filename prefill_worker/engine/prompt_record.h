// What the engine keeps about one prompt. Private to engine/.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/handoff/ticket.h"
#include "common/kv/block_pool.h"
#include "common/model/model.h"
#include "prefill_worker/engine/engine.h"
#include "prefill_worker/engine/prompt.h"

namespace baton::prefill_worker {

struct Engine::Prompt {
  PromptId id{};
  PromptRequest request;
  std::shared_ptr<PromptObserver> observer;  // null once ended
  kv::OwnerId owner{};
  model::SequenceState sequence;
  PromptState state = PromptState::kWaiting;
  bool told_started = false;
  // From Sender::Start until kQuiet: the sender may read the sequence.
  bool sending = false;
  bool reported_unquiet = false;
  // Steps that had ended when its early end was asked for.
  std::optional<int64_t> cancel_step;
  std::optional<handoff::Ticket> ticket;
  std::vector<float> last_logits;
  // Over the ids that steps have run: what the manifest says of the prompt.
  Sha256Hasher processed_ids;

  absl::Time admitted;
  absl::Time first_chunk;
  absl::Time computed;
  absl::Time attached;
  absl::Time sealed;
  absl::Time ended;

  int64_t tokens() const {
    return static_cast<int64_t>(request.prompt_ids.size());
  }
  absl::Span<const int32_t> ids_of(const Chunk& chunk) const {
    return absl::MakeConstSpan(request.prompt_ids)
        .subspan(static_cast<size_t>(chunk.first),
                 static_cast<size_t>(chunk.tokens));
  }
  bool ended_already() const { return state == PromptState::kQuiescing; }
};

}  // namespace baton::prefill_worker
