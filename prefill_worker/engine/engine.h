// The prefill engine: owns every prompt of this worker with its memory, plans
// and runs steps, and drives the hand-off sender. Prefill never samples.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/handoff/sender.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"
#include "prefill_worker/engine/prompt.h"
#include "prefill_worker/metrics/prefill_metrics.h"
#include "prefill_worker/scheduler/scheduler.h"

namespace baton::prefill_worker {

struct EngineOptions {
  SchedulerOptions scheduler;
  Sha256Digest model_digest{};
  // Prompt tokens that may wait or run; more is RESOURCE_EXHAUSTED.
  int64_t max_backlog_tokens = 32'768;
  // Started is told when the first chunk is this near, so that the decode
  // reservation is made while the prompt still waits.
  absl::Duration start_eta = absl::Milliseconds(200);
  // A computed prompt waits this long for its ticket.
  absl::Duration attach_timeout = absl::Seconds(10);
  // Cap on the deadline of a prompt, also when the caller has none.
  absl::Duration max_lifetime = absl::Minutes(10);
  // A sender that is not quiet after this is reported as a bug.
  absl::Duration quiet_limit = absl::Minutes(1);
  bool poison_free_pages = false;
};

// All outlive the engine.
struct EngineDependencies {
  model::Model* model = nullptr;
  kv::KvStore* store = nullptr;
  kv::BlockPool* pool = nullptr;
  handoff::Sender* sender = nullptr;
  PrefillMetrics* metrics = nullptr;
  Clock* clock = Clock::Real();
  Random* random = Random::System();
  // A hand-off was admitted (for load reports); optional.
  std::function<void(HandoffId)> on_admitted;
};

// Published for other threads before and after each step.
struct EngineLoad {
  kv::BlockCounts counts;
  int32_t sequences = 0;              // prompts that hold memory
  std::array<int64_t, 5> in_state{};  // of them, by PromptState
  int64_t steps = 0;                  // that have ended
  int64_t backlog_tokens = 0;
  double tokens_per_second = 0;
  bool draining = false;  // nothing is admitted any more
};

// Owned by the step loop's thread, load() and SetGauges() excepted.
class Engine final {
 public:
  Engine(const EngineOptions& options, EngineDependencies dependencies);
  ~Engine();

  // Admits or refuses: OnAdmitted, or OnFinished with
  //   UNAVAILABLE draining; INVALID_ARGUMENT empty prompt, unknown token id,
  //   never fits; FAILED_PRECONDITION other model, prompt hash;
  //   ALREADY_EXISTS this attempt (or a newer one) of the hand-off is here;
  //   DEADLINE_EXCEEDED; RESOURCE_EXHAUSTED (retry delay) backlog, blocks.
  // A newer attempt ends an older one of the same hand-off with ABORTED.
  void Admit(PromptRequest request, std::shared_ptr<PromptObserver> observer);
  void Attach(const PromptObserver* observer, handoff::Ticket ticket);
  // Ends the prompt with `reason` at this step boundary. No-op when it ended.
  // `since_step`: load().steps when the cancel arrived; none: it is now.
  void Cancel(const PromptObserver* observer, const absl::Status& reason,
              std::optional<int64_t> since_step = std::nullopt);

  // One turn: sender events, deadlines, one step. Whether there was work.
  bool Iterate();
  // Each second: compares the ledger with the owners.
  void Audit();

  void BeginDrain();
  // Ends every prompt with UNAVAILABLE. What the sender still reads is given
  // back at its kQuiet if Iterate is called again.
  void EndAll();

  // Any thread.
  EngineLoad load() const;
  // Sets the gauges, and the sender's counters, to this moment's values. Any
  // thread, one at a time, for as long as the sender lives: before each scrape.
  void SetGauges();

 private:
  struct Prompt;
  using Key = std::pair<HandoffId, Attempt>;

  absl::Status CheckRequest(const PromptRequest& request) const;
  absl::Status CheckCapacity(const PromptRequest& request);
  void SupersedeOlder(const PromptRequest& request);
  Prompt* Find(const PromptObserver* observer);

  bool HandleSenderEvents();
  void EndOverdue();
  void TellStarted();
  void StartSends();
  bool RunStep();
  void FinishChunk(const Chunk& chunk, const float* logits);
  void FailStep(const std::vector<Chunk>& chunks, const absl::Status& status);
  void Seal(Prompt& prompt);
  enum class SendEnds { kByCancel, kByItself };
  void End(Prompt& prompt, const absl::Status& status, SendEnds send);
  // Returns the memory and forgets the prompt; `prompt` is gone afterwards.
  void Free(Prompt& prompt);
  void LogEnd(const Prompt& prompt, const absl::Status& status) const;
  absl::Duration EtaFor(int64_t tokens_ahead) const;
  absl::Status Overloaded(absl::string_view what) const;
  void Publish();

  const EngineOptions options_;
  const EngineDependencies deps_;
  Scheduler scheduler_;
  bool draining_ = false;
  int64_t next_prompt_ = 1;
  int64_t steps_ = 0;
  // Ordered by admission. Stable addresses: events arrive while we iterate.
  std::map<PromptId, std::unique_ptr<Prompt>> prompts_;
  std::map<Key, PromptId> by_key_;
  std::array<int64_t, 5> in_state_{};
  // Moving average over steps; the start value only shapes the first estimates.
  double tokens_per_second_ = 500;
  std::vector<float> logits_;

  mutable Mutex mu_;
  EngineLoad load_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::prefill_worker
