#include "router/registry/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"

namespace baton::router::registry {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kHashBytes = 32;

absl::Status CheckComplete(const WorkerIdentity& worker) {
  if (worker.name.empty() || worker.name.size() > kMaxNameBytes) {
    return request::InvalidField(
        "worker.name", absl::StrCat(worker.name.size(),
                                    " bytes, expected 1 to ", kMaxNameBytes));
  }
  if (!worker.prefill && !worker.decode) {
    return request::InvalidField("worker.roles",
                                 "none, expected prefill, decode or both");
  }
  if (worker.incarnation == 0) {
    return request::InvalidField("worker.incarnation",
                                 "0, expected a number "
                                 "that changes with "
                                 "each start");
  }
  if (worker.endpoints.empty() || worker.endpoints.front().empty()) {
    return request::InvalidField("worker.endpoints",
                                 "empty, expected host:port of each rank");
  }
  if (worker.model_digest.size() != kHashBytes) {
    return request::InvalidField(
        "worker.model_digest",
        absl::StrCat(worker.model_digest.size(), " bytes, expected 32"));
  }
  if (worker.state_format_hash.size() != kHashBytes) {
    return request::InvalidField(
        "worker.state_format_hash",
        absl::StrCat(worker.state_format_hash.size(), " bytes, expected 32"));
  }
  if (worker.max_positions < 1) {
    return request::InvalidField(
        "worker.max_positions",
        absl::StrCat(worker.max_positions, ", expected at least 1"));
  }
  return absl::OkStatus();
}

absl::Status Mismatch(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kFailedPrecondition, message,
                            {.reason = request::ErrorReason::kMismatch});
}

}  // namespace

absl::Status Registry::CheckFits(const WorkerIdentity& worker) {
  if (!model_digest_.empty() && worker.model_digest != model_digest_) {
    ++mismatches_;
    return Mismatch(absl::StrCat("worker '", worker.name, "' has the model ",
                                 absl::BytesToHexString(worker.model_digest),
                                 ", this router serves ",
                                 absl::BytesToHexString(model_digest_)));
  }
  for (const auto& [name, entry] : workers_) {
    if (name == worker.name || entry.lost ||
        entry.identity->state_format_hash == worker.state_format_hash) {
      continue;
    }
    ++mismatches_;
    return Mismatch(absl::StrCat(
        "worker '", worker.name, "' has the StateFormat '", worker.state_format,
        "', worker '", name, "' has '", entry.identity->state_format, "'"));
  }
  return absl::OkStatus();
}

absl::Status Registry::Register(const WorkerIdentity& worker) {
  RETURN_IF_ERROR(CheckComplete(worker));
  {
    MutexLock lock(&mu_);
    const auto it = workers_.find(worker.name);
    RETURN_IF_ERROR(CheckFits(worker));
    if (it == workers_.end() &&
        workers_.size() >= static_cast<size_t>(kMaxWorkers)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this router knows ", kMaxWorkers, " workers already"));
    }
    model_digest_ = worker.model_digest;

    Entry& entry = workers_[worker.name];
    const bool known = entry.identity != nullptr &&
                       entry.identity->incarnation == worker.incarnation;
    if (!known) {
      // Requests on the old incarnation end by their legs; they no longer
      // count.
      entry = Entry{};
      LogInfo("worker_registered", {{"worker", worker.name},
                                    {"incarnation", worker.incarnation},
                                    {"endpoint", worker.endpoints.front()},
                                    {"prefill", worker.prefill},
                                    {"decode", worker.decode}});
    }
    entry.identity = std::make_shared<WorkerIdentity>(worker);
    entry.last_heartbeat = clock_->Now();
    entry.lost = false;
    snapshot_ = nullptr;
  }
  return absl::OkStatus();
}

absl::Status Registry::Heartbeat(absl::string_view name,
                                 Incarnation incarnation,
                                 const LoadReport& load) {
  {
    MutexLock lock(&mu_);
    const auto it = workers_.find(name);
    if (it == workers_.end() ||
        it->second.identity->incarnation != incarnation) {
      return absl::NotFoundError(
          absl::StrCat("worker '", name, "' with incarnation ", incarnation,
                       " is not registered here"));
    }
    Entry& entry = it->second;
    if (load.sequence <= entry.load.sequence) return absl::OkStatus();
    if (entry.lost) {
      LogInfo("worker_back", {{"worker", name}, {"incarnation", incarnation}});
    }
    entry.load = load;
    entry.last_heartbeat = clock_->Now();
    entry.lost = false;
    entry.refused = false;
    entry.suspect = false;
    for (const HandoffId& handoff : load.admitted_since_report) {
      for (const WorkerRole role :
           {WorkerRole::kPrefill, WorkerRole::kDecode}) {
        const auto request = entry.requests.find({handoff, role});
        if (request != entry.requests.end()) request->second.reported = true;
      }
    }
    entry.load.admitted_since_report.clear();
    snapshot_ = nullptr;
  }
  CapacityChanged();
  return absl::OkStatus();
}

void Registry::Sweep() {
  MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  for (auto it = workers_.begin(); it != workers_.end();) {
    Entry& entry = it->second;
    const absl::Duration age = now - entry.last_heartbeat;
    if (!entry.lost && age > kMissedHeartbeats * options_.heartbeat_interval) {
      entry.lost = true;
      snapshot_ = nullptr;
      LogWarning("worker_lost",
                 {{"worker", it->first},
                  {"incarnation", entry.identity->incarnation},
                  {"heartbeat_age_ms", absl::ToInt64Milliseconds(age)}});
    }
    if (entry.lost && entry.requests.empty() && age > kForgetAfter) {
      snapshot_ = nullptr;
      it = workers_.erase(it);
    } else {
      ++it;
    }
  }
}

Registry::Entry* Registry::Find(const WorkerRef& worker) {
  const auto it = workers_.find(worker.name);
  if (it == workers_.end() ||
      it->second.identity->incarnation != worker.incarnation) {
    return nullptr;
  }
  return &it->second;
}

void Registry::ReportFailure(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  if (Entry* const entry = Find(worker)) {
    entry->suspect = true;
    snapshot_ = nullptr;
  }
}

void Registry::ReportRefusal(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  if (Entry* const entry = Find(worker)) {
    entry->refused = true;
    snapshot_ = nullptr;
  }
}

void Registry::AddInFlight(const WorkerRef& worker, const InFlight& request) {
  MutexLock lock(&mu_);
  if (Entry* const entry = Find(worker)) {
    entry->requests.insert_or_assign({request.handoff, request.role},
                                     Entry::Request{request, false});
    snapshot_ = nullptr;
  }
}

void Registry::RemoveInFlight(const WorkerRef& worker, HandoffId handoff,
                              WorkerRole role) {
  {
    MutexLock lock(&mu_);
    Entry* const entry = Find(worker);
    if (entry == nullptr || entry->requests.erase({handoff, role}) == 0) return;
    entry->refused = false;
    snapshot_ = nullptr;
  }
  CapacityChanged();
}

void Registry::CapacityChanged() {
  if (on_capacity_) on_capacity_();
}

std::shared_ptr<const Snapshot> Registry::snapshot() const {
  MutexLock lock(&mu_);
  if (snapshot_ != nullptr) return snapshot_;
  auto fresh = std::make_shared<Snapshot>();
  fresh->reserve(workers_.size());
  for (const auto& [name, entry] : workers_) {
    WorkerView view;
    view.identity = entry.identity;
    view.load = entry.load;
    view.state = entry.lost ? WorkerState::kLost : entry.load.state;
    view.last_heartbeat = entry.last_heartbeat;
    view.in_flight = static_cast<int32_t>(entry.requests.size());
    for (const auto& [key, request] : entry.requests) {
      if (request.reported) continue;
      view.unreported_prompt_tokens += request.in_flight.prompt_tokens;
      view.unreported_samples += request.in_flight.samples;
      view.unreported_blocks += request.in_flight.blocks;
    }
    view.refused = entry.refused;
    view.suspect = entry.suspect;
    fresh->push_back(std::move(view));
  }
  snapshot_ = std::move(fresh);
  return snapshot_;
}

std::string Registry::model_digest() const {
  MutexLock lock(&mu_);
  return model_digest_;
}

std::string Registry::state_format() const {
  const std::shared_ptr<const Snapshot> now = snapshot();
  for (const WorkerView& worker : *now) {
    if (worker.state != WorkerState::kLost)
      return worker.identity->state_format;
  }
  return "";
}

bool Registry::CanServe() const {
  const std::shared_ptr<const Snapshot> now = snapshot();
  const auto any = [&](WorkerRole role) {
    return std::any_of(now->begin(), now->end(), [&](const WorkerView& w) {
      return w.state == WorkerState::kServing && w.identity->Has(role);
    });
  };
  return any(WorkerRole::kPrefill) && any(WorkerRole::kDecode);
}

int64_t Registry::mismatches() const {
  MutexLock lock(&mu_);
  return mismatches_;
}

}  // namespace baton::router::registry
