// The decode worker's step: takes over verified hand-offs, runs the model over
// one token of each running sequence, samples, and ends what has ended.
//
// States of a request (README.md has the table of events):
//   RESERVED   memory is held, its hand-off is awaited
//   RUNNING    committed; its samples are in the batch or have ended
//   QUIESCING  over for its caller; memory stays until no scatter touches it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/handoff/receiver.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"
#include "common/request/request.h"
#include "common/tokenizer/stop_matcher.h"
#include "decode_worker/engine/sample.h"
#include "decode_worker/metrics/decode_metrics.h"
#include "decode_worker/output/output_pump.h"
#include "decode_worker/output/request_output.h"
#include "decode_worker/scheduler/scheduler.h"
#include "decode_worker/scheduler/start_request.h"

namespace baton::decode_worker {

struct EngineOptions {
  model::Model* model = nullptr;
  kv::KvStore* store = nullptr;
  kv::BlockPool* pool = nullptr;
  handoff::Receiver* receiver = nullptr;
  const OutputVocabulary* vocabulary = nullptr;
  DecodeMetrics* metrics = nullptr;
  std::vector<int32_t> eos_token_ids;
  int32_t max_seats = 0;  // sequences in one step at most
  Clock* clock = Clock::Real();
  Random* random = Random::System();
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  bool poison_free_pages = false;
  // Tells the calls with news, all at once, before and after each step.
  std::function<void(OutputPump::Outputs*)> notify = nullptr;
};

// Counters and gauges of one moment.
struct EngineStats {
  int64_t steps = 0;             // that have ended
  int64_t processed_tokens = 0;  // that went through the model
  int64_t sampled_tokens = 0;
  int32_t reserved = 0;   // samples of requests in RESERVED
  int32_t running = 0;    // samples in the batch
  int32_t quiescing = 0;  // samples that ended and still hold memory
  int32_t open_calls = 0;
  int32_t free_seats = 0;  // batch seats and slots, the fewer of both
  bool draining = false;
  kv::BlockCounts blocks;
};

// Everything but stats and SetGauges is called by the step loop's thread only.
class Engine final {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Reserves or refuses; the answer is an event of `output`, which names the
  // request from here on. Returns whether it was admitted.
  bool Start(StartRequest start, std::shared_ptr<RequestOutput> output);
  // The router voids the current attempt.
  void Reticket(const RequestOutput* output, Attempt attempt);
  // Drops the request at this step boundary; its call ends with `status`. No-op
  // when it is over. `since_step`: stats().steps when the cancel arrived; none:
  // it is now.
  void Cancel(const RequestOutput* output, const absl::Status& status,
              std::optional<int64_t> since_step = std::nullopt);

  // One turn: hand-off events, deadlines, slow readers, one step. Returns
  // whether a step was run.
  bool Iterate();
  // Each second: compares the ledger with the owners.
  void Audit();
  // Refuses every later Start.
  void BeginDrain() { draining_ = true; }
  // Ends every call with `status`.
  void EndAll(const absl::Status& status);
  // No request holds anything and no call is open.
  bool idle() const { return requests_.empty() && open_.empty(); }

  // Of before or after the current step. Any thread.
  EngineStats stats() const;
  // Sets the gauges, and the receiver's counters, to this moment's values. Any
  // thread, one at a time: before each scrape.
  void SetGauges();

 private:
  enum class Phase { kReserved, kRunning, kQuiescing };
  struct Request {
    StartRequest start;
    std::shared_ptr<RequestOutput> output;
    Phase phase = Phase::kReserved;
    Attempt attempt = 1;
    absl::Time reserved_at;
    std::optional<absl::Time> committed_at;
    Reservation reservation;  // until the commit
    // What the receiver scatters into: stable until the request is gone.
    std::vector<BlockId> first_table;
    std::vector<int32_t> end_ids;  // end-of-sequence and stop ids
    // Samples that hold memory; they are removed when it returns.
    std::vector<std::unique_ptr<Sample>> samples;
    int32_t running = 0;  // samples that continue
    bool quiet = false;   // no scatter touches the memory any more
    bool has_news = false;
    // Steps that had ended when its early end was asked for.
    std::optional<int64_t> cancel_step;
    int32_t output_tokens = 0;
  };
  // An output whose call is still open, to find slow readers.
  struct OpenCall {
    std::shared_ptr<RequestOutput> output;
    std::optional<absl::Time> cut_at;
  };

  Request* Find(const RequestOutput* output);
  Request* Find(HandoffId handoff);
  absl::Status Admit(StartRequest start,
                     const std::shared_ptr<RequestOutput>& output);
  void HandleEvent(handoff::ReceiverEvent event);
  void Commit(Request* request, const handoff::ReceiverEvent& event);
  // First tokens from the prompt's last logits, without a step.
  void StartSamples(Request* request, absl::Span<const float> last_logits);
  // Ends the call and moves the request to QUIESCING.
  void EndRequest(Request* request, const absl::Status& status);
  // Returns what has ended and is quiet; forgets the request with its last
  // sample. `request` may be gone afterwards.
  void ReleaseEnded(Request* request);
  void FinishIfDone(Request* request);
  void CheckDeadlines();
  void CheckReaders();
  bool RunStep();
  // False when the logits held no candidate.
  bool Advance(Request* request, Sample* sample,
               absl::Span<const float> logits);
  void MarkNews(Request* request);
  void TellNews();
  // Poisons a table's blocks from `first` on, and the slot.
  void Poison(const std::vector<BlockId>& table, int32_t first, int32_t slot);
  void LogEnd(const Request& request, const absl::Status& status) const;
  void PublishStats();

  const EngineOptions options_;
  Scheduler scheduler_;
  bool draining_ = false;

  absl::flat_hash_map<const RequestOutput*, std::unique_ptr<Request>> requests_;
  absl::flat_hash_map<HandoffId, Request*> by_handoff_;
  std::vector<OpenCall> open_;
  absl::Time next_reader_check_;
  OutputPump::Outputs news_;

  struct Seat {
    Request* request;
    Sample* sample;
  };
  std::vector<Seat> batch_;  // samples that continue, in order of commit

  // Reused by every step.
  std::vector<model::Span> spans_;
  std::vector<float> logits_;
  kernels::SamplingScratch scratch_;

  mutable Mutex stats_mu_;
  EngineStats published_ BATON_GUARDED_BY(stats_mu_);
  EngineStats stats_;
};

}  // namespace baton::decode_worker
