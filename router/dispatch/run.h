// The life of one request (design.md 2): an explicit state machine over the
// prefill leg, the decode leg and the client's stream.
//
//  state         waits for                 leaves to
//  ------------  ------------------------  ---------------------------------
//  kQueued       a permit, or room on      kAdmitting; RESOURCE_EXHAUSTED at
//                the workers               the queue timeout
//  kAdmitting    Prefill: Admitted         kAdmitted (ETA long), kReserving
//  kAdmitted     Prefill: Started, or ETA  kReserving
//                within reserve_ahead
//  kReserving    Decode: Reserved          kTransferring (Attach is sent)
//  kTransferring Decode: Committed         kCommitted
//  kReticketing  Decode: Reticketed        kReadmitting; kCommitted when the
//                                          commit came first
//  kReadmitting  Prefill: Admitted, of     kTransferring (Attach is sent)
//                the next attempt
//  kCommitted    Decode: first output      kStreaming
//  kStreaming    Decode: all samples       kEnded, OK
//                finished
//  kEnded        the client's last write   (Finish; nothing is held)
//
//  event                    in state            result
//  -----------------------  ------------------  ------------------------------
//  prefill refuses          kAdmitting          another pair; none: kQueued
//                           kReadmitting        another prefill; none:
//                                               RESOURCE_EXHAUSTED
//  decode refuses           kReserving          prefill released (never waited
//                                               for), another pair; none:
//                                               kQueued
//  prefill lost or late     kAdmitting,         another pair      (a failure)
//                           kAdmitted,
//                           kReserving
//                           kTransferring,      kReticketing      (a failure)
//                           kReadmitting
//                           later               nothing
//  HandoffFailed            kTransferring,      kReticketing      (a failure)
//                           kReadmitting
//  decode lost or late      up to kCommitted    another pair      (a failure,
//                                               unless the one that made it
//                                               kReticketing)
//                           kStreaming          UNAVAILABLE
//  failure max_attempts     any                 INTERNAL kWorkerLost; DATA_LOSS
//                                               when the receiver rejected what
//                                               was sent
//  worker breaks protocol   any                 INTERNAL kBug
//  deadline                 any                 DEADLINE_EXCEEDED
//  client gone, Cancel      any                 CANCELLED (or Cancel's status)
//  client does not read     any                 CANCELLED kSlowReader
//
// Every end cancels both legs, except a prefill leg after the commit and a
// decode leg after its last sample, which run out by themselves. Every state
// has a deadline (RunOptions) under the request's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "router/dispatch/admission_queue.h"
#include "router/dispatch/legs.h"
#include "router/dispatch/output_ledger.h"
#include "router/dispatch/strand.h"
#include "router/dispatch/timer_queue.h"
#include "router/dispatch/types.h"
#include "router/metrics/router_metrics.h"
#include "router/policy/choose_pair.h"
#include "router/registry/registry.h"

namespace baton::router::dispatch {

enum class RunState : uint8_t {
  kQueued,
  kAdmitting,
  kAdmitted,
  kReserving,
  kTransferring,
  kReticketing,
  kReadmitting,
  kCommitted,
  kStreaming,
  kEnded,
};
absl::string_view RunStateName(RunState state);

struct RunOptions {
  // How long a request may wait for room before it is refused; 0: not at all.
  absl::Duration queue_timeout = absl::Seconds(5);
  // The decode reservation is made when the prompt's turn is this near.
  absl::Duration reserve_ahead = absl::Milliseconds(200);
  // Answers that need no computation: Admitted, Reserved, Reticketed.
  absl::Duration answer_timeout = absl::Seconds(5);
  // No progress of a running prompt, or of a sealed hand-off.
  absl::Duration progress_timeout = absl::Seconds(10);
  // No output of a committed request.
  absl::Duration output_timeout = absl::Seconds(30);
  // A write that the client does not take.
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  // Failures that end a request, so that a prompt that kills workers does not
  // walk through all of them (hazards.md P18).
  int32_t max_attempts = 2;
  // Refusals ask the client to come back after this, times 1 to 2.
  absl::Duration retry_delay = absl::Milliseconds(500);
};

// What runs share; all outlive every run.
struct RunContext {
  const Clock* clock = nullptr;
  Random* random = nullptr;
  TimerQueue* timers = nullptr;
  AdmissionQueue* queue = nullptr;
  registry::Registry* registry = nullptr;
  LegFactory* legs = nullptr;
  metrics::RouterMetrics* metrics = nullptr;
  RunOptions options;
  // Called once, right before the run's call to ClientSink::Finish.
  std::function<void(const RequestId&)> on_end;
};

// RESOURCE_EXHAUSTED kOverloaded with a jittered delay.
absl::Status Overloaded(absl::string_view message, const RunOptions& options,
                        Random* random);

// Thread-safe; events are handled one at a time on a Strand. Held by its legs,
// by the client's reactor until Finish, and by nobody else, so it goes when all
// of them have ended.
class Run final : public std::enable_shared_from_this<Run> {
 public:
  // The request arrived at the queue (AdmissionQueue::TryArrive). `sink` is
  // used until its Finish was called.
  static std::shared_ptr<Run> Create(const RunContext* context,
                                     RequestSpec spec, ClientSink* sink);

  void Start();
  // Ends the request with `why` unless it has ended.
  void Cancel(absl::Status why);
  // The client's stream is gone: CANCELLED, or DEADLINE_EXCEEDED when that is
  // the likely cause.
  void ClientGone();
  // Answers ClientSink::Write.
  void OnWriteDone(bool ok);

  const RequestId& id() const { return spec_.id; }
  // For tests; exact only while no event is being handled.
  RunState state() const { return state_; }

 private:
  Run(const RunContext* context, RequestSpec spec, ClientSink* sink);

  // Everything below runs on the strand.
  absl::Time Now() const { return context_->clock->Now(); }
  void Post(void (Run::*event)());

  // run.cc: queue, placement, timers, end.
  void DoStart();
  void OnGranted();
  void Place();
  void WaitForRoom();
  policy::PlacementQuery Query() const;
  void Enter(RunState state, absl::Duration limit);
  void Arm();
  void OnTimer();
  void OnStateTimeout();
  void DoCancel(const absl::Status& why);
  void DoWriteDone(bool ok);
  void Send(ClientEvent event);
  void End(const absl::Status& status);
  void Conclude();
  Timeline MakeTimeline() const;
  absl::Status DeadlineError() const;
  // The status of a request whose last attempt failed with `cause`.
  absl::Status Exhausted(const absl::Status& cause) const;

  // run_prefill.cc
  void StartPrefillLeg(const registry::WorkerRef& worker, RunState state);
  void DropPrefill();
  void OnPrefill(int64_t leg, const PrefillEvent& event);
  void On(const PrefillAdmitted& event);
  void On(const PrefillStarted& event);
  void On(const PrefillProgress& event);
  void On(const PrefillSealed& event);
  void On(const PrefillVerdict& event);
  void OnPrefillEnded(const absl::Status& status);
  void PrefillRefused(const absl::Status& status);
  void LosePrefill(const absl::Status& cause, metrics::RetryReason reason);
  void ReplacePrefill();

  // run_decode.cc
  void StartDecodeLeg();
  void DropDecode();
  void ReadDecode();
  void OnDecode(int64_t leg, const DecodeEvent& event);
  void On(const DecodeReserved& event);
  void On(const DecodeReticketed& event);
  void On(const DecodeCommitted& event);
  void On(const DecodeTokens& event);
  void On(const DecodeSampleFinished& event);
  void On(const DecodeHandoffFailed& event);
  void OnDecodeEnded(const absl::Status& status);
  void DecodeRefused();
  void LoseDecode(const absl::Status& cause);
  void Committed();
  void CountTokens(const DecodeTokens& event);
  void ProtocolError(absl::string_view what);

  const RunContext* const context_;
  const RequestSpec spec_;
  ClientSink* const sink_;
  Strand strand_;

  RunState state_ = RunState::kQueued;
  absl::Time state_deadline_;
  absl::Time queue_deadline_;
  std::shared_ptr<AdmissionQueue::Entry> entry_;
  TimerQueue::TimerId timer_;
  absl::Time armed_for_ = absl::InfiniteFuture();

  // Placement.
  policy::Exclusions exclusions_;
  int32_t failures_ = 0;
  HandoffId handoff_;
  Attempt attempt_ = 1;
  OpaqueTicket ticket_;
  registry::WorkerRef prefill_worker_;
  registry::WorkerRef decode_worker_;
  std::string first_prefill_;  // names in Started
  std::string first_decode_;

  // Legs; the numbers tell events of older legs apart.
  std::unique_ptr<PrefillLeg> prefill_;
  int64_t prefill_leg_ = 0;
  bool prefill_counted_ = false;
  std::unique_ptr<DecodeLeg> decode_;
  int64_t decode_leg_ = 0;
  bool decode_counted_ = false;
  bool read_outstanding_ = false;
  // kAdmitted: when to reserve. While a prompt waits for its turn it may take
  // until `turn_by_` without a sign of progress.
  absl::Time reserve_at_ = absl::InfiniteFuture();
  absl::Time turn_by_ = absl::InfinitePast();

  // Client.
  bool write_outstanding_ = false;
  absl::Time write_deadline_ = absl::InfiniteFuture();
  bool cut_ = false;
  bool started_sent_ = false;
  absl::Status final_;
  bool concluded_ = false;

  // Output.
  OutputLedger ledger_;
  std::vector<int64_t> client_events_;   // per sample
  std::vector<int32_t> sample_tokens_;   // per sample
  std::vector<absl::Time> last_output_;  // per sample

  // Timeline.
  absl::Time admitted_at_ = absl::InfinitePast();
  absl::Time committed_at_ = absl::InfinitePast();
  absl::Time first_token_at_ = absl::InfinitePast();
  absl::Duration sealed_prefill_ = absl::InfiniteDuration();
  absl::Duration commit_wait_;
  bool queue_observed_ = false;
};

}  // namespace baton::router::dispatch
