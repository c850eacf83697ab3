// Plays the router for one request at the doors of whole workers, step by step,
// so that a test decides the order of what races; and holds single threads at
// fault points.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/request/request.h"
#include "tests/decode_worker/collected.h"
#include "tests/integration/colocated.h"

namespace baton::integration {

// Holds the first thread that reaches the point, and no later one (a
// testing::SyncPoint holds them all, so a second worker would stand there too).
class HoldFirst final {
 public:
  explicit HoldFirst(const std::string& point);
  ~HoldFirst();  // releases
  bool WaitUntilReached(absl::Duration timeout = absl::Seconds(20));
  void Release();

 private:
  struct State;
  const std::string point_;
  const std::shared_ptr<State> state_;
};

// What one prefill worker says about one attempt. Thread-safe.
class PromptLog final : public prefill_worker::PromptObserver {
 public:
  struct Seen {
    bool admitted = false;
    bool sealed = false;
    std::optional<bool> committed;  // verdict
    std::optional<absl::Status> finished;
  };
  void OnAdmitted(absl::Duration, int64_t) override;
  void OnStarted() override {}
  void OnProgress(int32_t) override {}
  void OnSealed(int64_t) override;
  void OnVerdict(bool committed) override;
  void OnFinished(const absl::Status& status) override;

  Seen seen() const;
  // False when `timeout` passes first.
  bool WaitFor(const std::function<bool(const Seen&)>& condition,
               absl::Duration timeout = absl::Seconds(20)) const;

 private:
  void Update(const std::function<void(Seen*)>& change);
  mutable Mutex mu_;
  mutable CondVar changed_;
  Seen seen_ BATON_GUARDED_BY(mu_);
};

// One request at one decode worker and one or more prefill workers. The
// workers outlive it; it ends before it is destroyed (decode's End was seen).
class DirectCall final {
 public:
  struct Options {
    std::vector<int32_t> prompt;
    request::SamplingParams sampling;
    absl::Time deadline = absl::InfiniteFuture();  // by decode's clock
  };
  DirectCall(const Colocated& workers, Options options, Random* random);

  // Admits attempt `attempt` at prefill worker `index`; does not wait. Returns
  // its log.
  std::shared_ptr<PromptLog> Admit(int32_t index, Attempt attempt);
  // Gives the latest ticket to that prompt.
  void Attach(int32_t index, const std::shared_ptr<PromptLog>& log);
  void CancelPrompt(int32_t index, const std::shared_ptr<PromptLog>& log);
  // Reserves at decode worker 0 and waits for the ticket or the refusal.
  absl::Status Reserve();
  // Asks for the next attempt and waits for its ticket; FAILED_PRECONDITION
  // when the hand-off is committed.
  absl::Status Reticket(Attempt attempt);
  // The same in two steps: the request is with the worker when the first
  // returns.
  void PostReticket(Attempt attempt);
  absl::Status WaitForReticket();
  void Cancel();
  // Admit, Reserve, Attach with prefill worker 0.
  absl::StatusOr<std::shared_ptr<PromptLog>> Begin();

  // How decode ended the call; DEADLINE_EXCEEDED without reason when it did
  // not in time.
  absl::Status WaitForEnd(absl::Duration timeout = absl::Seconds(20));
  // False when `timeout` passes first.
  bool WaitFor(
      const std::function<bool(const decode_worker::Collected&)>& condition,
      absl::Duration timeout = absl::Seconds(20));
  std::vector<int32_t> ids(int32_t sample = 0) const;
  std::string text(int32_t sample = 0) const;
  bool committed() const;

 private:
  // Shared with the output, whose pump may call late.
  struct Reader {
    explicit Reader(int32_t n) : collected(n) {}
    Mutex mu;
    CondVar changed;
    std::shared_ptr<decode_worker::RequestOutput> output BATON_GUARDED_BY(mu);
    decode_worker::Collected collected BATON_GUARDED_BY(mu);
  };

  const Colocated& workers_;
  const Options options_;
  const RequestId request_;
  const HandoffId handoff_;
  const Sha256Digest prompt_hash_;
  const std::shared_ptr<Reader> reader_;
};

}  // namespace baton::integration
