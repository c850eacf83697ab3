// One prompt at a prefill worker, as the service hands it in and as the engine
// tells about it. No wire types.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/handoff/ticket.h"

namespace baton::prefill_worker {

struct PromptRequest {
  RequestId request;
  HandoffId handoff;
  Attempt attempt = 0;
  std::vector<int32_t> prompt_ids;
  Sha256Digest prompt_hash{};   // as the router computed it
  Sha256Digest model_digest{};  // that the router believes in
  absl::Time deadline;          // by the engine's clock; may be infinite
};

// Told what becomes of one prompt, on the step loop's thread; must not block.
// OnFinished comes exactly once and last; it carries the call's status.
class PromptObserver {
 public:
  virtual ~PromptObserver() = default;
  virtual void OnAdmitted(absl::Duration eta, int64_t backlog_tokens) = 0;
  virtual void OnStarted() = 0;
  virtual void OnProgress(int32_t processed_tokens) = 0;
  virtual void OnSealed(int64_t prefill_us) = 0;
  virtual void OnVerdict(bool committed) = 0;
  virtual void OnFinished(const absl::Status& status) = 0;
};

// Where calls hand their prompts in. Thread-safe; returns at once.
class PromptIntake {
 public:
  virtual ~PromptIntake() = default;
  // False when the worker has stopped or too much is posted: OnFinished is not
  // called then, the caller refuses by itself.
  virtual bool Admit(PromptRequest request,
                     std::shared_ptr<PromptObserver> observer) = 0;
  // For the prompt that `observer` belongs to; no-ops when it has ended.
  virtual void Attach(std::shared_ptr<PromptObserver> observer,
                      handoff::Ticket ticket) = 0;
  virtual void Cancel(std::shared_ptr<PromptObserver> observer,
                      absl::Status reason) = 0;
};

// State of a prompt at this worker (sender states of design.md 2):
//
//   state      entered when           left when                     deadline
//   waiting    admitted               first chunk is in a step      request's
//   running    first chunk            last chunk is done            request's
//   computed   last chunk, no ticket  Attach                        attach
//   sealed     Seal handed to sender  the sender's verdict          sender's
//   quiescing  ended in any way       the sender is quiet           sender's
//
// Cancel, deadline, a failed step and a failed hand-off lead from any state to
// quiescing; without a send in progress the memory goes at once. Sending runs
// beside waiting to sealed from the moment a ticket is attached.
enum class PromptState : uint8_t {
  kWaiting,
  kRunning,
  kComputed,
  kSealed,
  kQuiescing
};
absl::string_view PromptStateName(PromptState state);

}  // namespace baton::prefill_worker
