#include "common/worker/registration.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "baton/v1/cluster.grpc.pb.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kMinInterval = absl::Milliseconds(100);
constexpr absl::Duration kMaxInterval = absl::Seconds(5);
// Ids beyond this are forgotten, oldest first: the list only sharpens a
// router's estimate, and a router that is down must not cost memory.
constexpr size_t kMaxAdmittedIds = 4096;

v1::WorkerInfo InfoToProto(const WorkerDescription& worker) {
  v1::WorkerInfo out;
  out.set_name(worker.name);
  for (const Role role : worker.roles) {
    out.add_roles(role == Role::kPrefill ? v1::WORKER_ROLE_PREFILL
                                         : v1::WORKER_ROLE_DECODE);
  }
  out.set_incarnation(worker.incarnation);
  for (const std::string& endpoint : worker.endpoints) {
    out.add_endpoints(endpoint);
  }
  out.set_model_digest(BytesOf(worker.model_digest));
  out.set_state_format_hash(BytesOf(worker.state_format_hash));
  out.set_state_format(worker.state_format);
  out.set_compute_policy(worker.compute_policy);
  out.set_node(worker.node);
  out.set_ranks(1);
  out.set_blocks(worker.blocks);
  out.set_slots(worker.slots);
  out.set_max_positions(worker.max_positions);
  out.set_max_backlog_tokens(worker.max_backlog_tokens);
  return out;
}

v1::WorkerState StateToProto(ReportedState state) {
  switch (state) {
    case ReportedState::kServing:
      return v1::WORKER_STATE_SERVING;
    case ReportedState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case ReportedState::kStalled:
      return v1::WORKER_STATE_STALLED;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

}  // namespace

// One router. Lock order: mu_ alone; never held over a call.
class Registration::RouterLoop final {
 public:
  RouterLoop(const RegistrationOptions* options, const std::string& router)
      : options_(*options),
        router_(router),
        stub_(v1::ClusterService::NewStub(rpc::CreateChannel(router))),
        backoff_(options->min_backoff),
        thread_("registration", [this] { Run(); }) {}

  ~RouterLoop() { Stop(); }

  void NoteAdmitted(HandoffId handoff) {
    MutexLock lock(&mu_);
    if (admitted_.size() >= kMaxAdmittedIds) {
      admitted_.erase(admitted_.begin());
    }
    admitted_.push_back(handoff);
  }

  void ReportSoon() {
    MutexLock lock(&mu_);
    report_soon_ = true;
    wake_.Signal();
  }

  void BeginStop() {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (call_ != nullptr) {
      call_->TryCancel();
    }
    wake_.Signal();
  }

  void Stop() {
    BeginStop();
    thread_.Join();
  }

  bool registered() const {
    return registered_.load(std::memory_order_relaxed);
  }

 private:
  void Run() {
    while (!stopping()) {
      const absl::Status status = registered() ? Heartbeat() : Register();
      if (stopping()) {
        return;
      }
      if (status.ok()) {
        backoff_ = options_.min_backoff;
        if (registered()) {
          Sleep(interval_);
        }
        continue;  // a router that changed under us is asked again at once
      }
      NoteFailure(status);
      // Jitter over [0.5, 1): restarted routers are not hit by all at once.
      Sleep(backoff_ * (0.5 + 0.5 * options_.random->Uniform()));
      backoff_ = std::min(2 * backoff_, options_.max_backoff);
    }
  }

  absl::Status Register() {
    v1::RegisterRequest request;
    *request.mutable_worker() = InfoToProto(options_.worker);
    v1::RegisterResponse response;
    const absl::Status status = Call([&](grpc::ClientContext* context) {
      return stub_->Register(context, request, &response);
    });
    if (!status.ok()) {
      return status;
    }
    interval_ = std::clamp(absl::Milliseconds(response.heartbeat_interval_ms()),
                           kMinInterval, kMaxInterval);
    router_incarnation_ = response.router_incarnation();
    registered_.store(true, std::memory_order_relaxed);
    failing_ = false;
    LogInfo("registered", {{"router", router_},
                           {"router_incarnation", router_incarnation_},
                           {"interval", absl::FormatDuration(interval_)}});
    // The first report follows at once: until then the router knows no load.
    return Heartbeat();
  }

  absl::Status Heartbeat() {
    const WorkerLoad load = options_.load();
    v1::HeartbeatRequest request;
    request.set_name(options_.worker.name);
    request.set_incarnation(options_.worker.incarnation);
    v1::LoadReport& report = *request.mutable_load();
    report.set_sequence(++sequence_);
    report.set_tick(load.tick);
    report.set_state(StateToProto(load.state));
    report.set_free_blocks(load.free_blocks);
    report.set_free_slots(load.free_slots);
    report.set_sequences(load.sequences);
    report.set_backlog_tokens(load.backlog_tokens);
    report.set_prefill_tokens_per_second(load.prefill_tokens_per_second);
    std::vector<HandoffId> admitted;
    {
      MutexLock lock(&mu_);
      admitted.swap(admitted_);
    }
    for (const HandoffId handoff : admitted) {
      report.add_admitted_since_report(ToBytes(handoff));
    }
    v1::HeartbeatResponse response;
    const absl::Status status = Call([&](grpc::ClientContext* context) {
      return stub_->Heartbeat(context, request, &response);
    });
    if (!status.ok()) {
      registered_.store(false, std::memory_order_relaxed);
      MutexLock lock(&mu_);
      admitted_.insert(admitted_.begin(), admitted.begin(), admitted.end());
      if (admitted_.size() > kMaxAdmittedIds) {
        admitted_.erase(admitted_.begin(), admitted_.end() - kMaxAdmittedIds);
      }
      // Told to register: no failure, and no reason to wait.
      return absl::IsNotFound(status) ? absl::OkStatus() : status;
    }
    if (response.router_incarnation() != router_incarnation_) {
      registered_.store(false, std::memory_order_relaxed);
    }
    return absl::OkStatus();
  }

  template <typename F>
  absl::Status Call(F call) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineIn(options_.call_timeout));
    {
      MutexLock lock(&mu_);
      if (stopping_) {
        return absl::CancelledError("the worker stops");
      }
      call_ = &context;
    }
    const grpc::Status status = call(&context);
    MutexLock lock(&mu_);
    call_ = nullptr;
    return rpc::FromGrpc(status);
  }

  // Once per outage: a router that is down for an hour is one line.
  void NoteFailure(const absl::Status& status) {
    if (!failing_) {
      LogWarning("router_unreachable",
                 {{"router", router_}, {"status", status.ToString()}});
    }
    failing_ = true;
  }

  void Sleep(absl::Duration duration) {
    const absl::Time until = Clock::Real()->Now() + duration;
    MutexLock lock(&mu_);
    while (!stopping_ && !report_soon_) {
      const absl::Duration left = until - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        break;
      }
      wake_.WaitFor(&mu_, left);
    }
    report_soon_ = false;
  }

  bool stopping() const {
    MutexLock lock(&mu_);
    return stopping_;
  }

  const RegistrationOptions& options_;
  const std::string router_;
  const std::unique_ptr<v1::ClusterService::Stub> stub_;

  mutable Mutex mu_;
  CondVar wake_;
  bool stopping_ BATON_GUARDED_BY(mu_) = false;
  bool report_soon_ BATON_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ BATON_GUARDED_BY(mu_) = nullptr;
  std::vector<HandoffId> admitted_ BATON_GUARDED_BY(mu_);

  // Flag, written by thread_ only; no other data depends on it.
  std::atomic<bool> registered_{false};

  // Used by thread_ only.
  absl::Duration backoff_;
  absl::Duration interval_ = absl::Seconds(1);
  uint64_t router_incarnation_ = 0;
  int64_t sequence_ = 0;
  bool failing_ = false;

  Thread thread_;  // last: starts when everything else is ready
};

Registration::Registration(RegistrationOptions options)
    : options_(std::move(options)) {
  for (const std::string& router : options_.routers) {
    loops_.push_back(std::make_unique<RouterLoop>(&options_, router));
  }
}

Registration::~Registration() { Stop(); }

void Registration::NoteAdmitted(HandoffId handoff) {
  for (const auto& loop : loops_) {
    loop->NoteAdmitted(handoff);
  }
}

void Registration::ReportSoon() {
  for (const auto& loop : loops_) {
    loop->ReportSoon();
  }
}

void Registration::Stop() {
  for (const auto& loop : loops_) {
    loop->BeginStop();
  }
  for (const auto& loop : loops_) {
    loop->Stop();
  }
}

int32_t Registration::registered() const {
  return static_cast<int32_t>(
      std::count_if(loops_.begin(), loops_.end(),
                    [](const auto& loop) { return loop->registered(); }));
}

}  // namespace baton::worker
