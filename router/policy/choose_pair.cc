#include "router/policy/choose_pair.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"

namespace baton::router::policy {
namespace {

using registry::Snapshot;
using registry::WorkerRole;
using registry::WorkerState;
using registry::WorkerView;
using Candidates = std::vector<const WorkerView*>;

absl::string_view RoleName(WorkerRole role) {
  return role == WorkerRole::kPrefill ? "prefill" : "decode";
}

double Fraction(double taken, double capacity) {
  return std::max(0.0, taken) / std::max(1.0, capacity);
}

// Keeps those that `keep` wants unless that leaves nobody.
template <typename Predicate>
void Prefer(Predicate keep, Candidates* candidates) {
  Candidates kept;
  for (const WorkerView* worker : *candidates) {
    if (keep(*worker)) kept.push_back(worker);
  }
  if (!kept.empty()) *candidates = std::move(kept);
}

absl::Status NoWorker(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kUnavailable, message,
                            {.reason = request::ErrorReason::kNoWorker});
}

absl::StatusOr<Candidates> Eligible(const Snapshot& snapshot, WorkerRole role,
                                    absl::string_view pin, int64_t positions,
                                    const Exclusions& exclusions) {
  Candidates serving;
  bool pin_known = pin.empty();
  for (const WorkerView& worker : snapshot) {
    if (!worker.identity->Has(role)) continue;
    if (!pin.empty() && worker.identity->name != pin) continue;
    pin_known = true;
    if (worker.state == WorkerState::kServing) serving.push_back(&worker);
  }
  if (!pin_known) {
    return request::InvalidField(
        absl::StrCat("placement.", RoleName(role), "_worker"),
        absl::StrCat("'", pin, "' is no known ", RoleName(role), " worker"));
  }
  if (serving.empty()) {
    return NoWorker(absl::StrCat("no ", RoleName(role), " worker serves"));
  }

  Candidates fitting;
  int64_t most_positions = 0;
  for (const WorkerView* worker : serving) {
    most_positions = std::max(most_positions, worker->identity->max_positions);
    if (worker->identity->max_positions >= positions) fitting.push_back(worker);
  }
  if (fitting.empty()) {
    return request::MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("the request needs ", positions, " positions, ",
                     RoleName(role), " workers have at most ", most_positions),
        {.reason = request::ErrorReason::kNeverFits,
         .field = role == WorkerRole::kPrefill ? "input" : "max_tokens"});
  }

  Candidates open;
  for (const WorkerView* worker : fitting) {
    if (!exclusions.refused.contains(worker->identity->name)) {
      open.push_back(worker);
    }
  }
  if (open.empty()) {
    return request::MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("no ", RoleName(role), " worker has capacity now (",
                     fitting.size(), " asked)"),
        {.reason = request::ErrorReason::kOverloaded});
  }
  Prefer(
      [&](const WorkerView& w) {
        return !exclusions.failed.contains(w.identity->name);
      },
      &open);
  Prefer([](const WorkerView& w) { return !w.suspect; }, &open);
  Prefer([](const WorkerView& w) { return !w.refused; }, &open);
  return open;
}

// One or two different members, in random order.
Candidates DrawTwo(const Candidates& candidates, Random* random) {
  const uint64_t size = candidates.size();
  if (size == 1) return candidates;
  const uint64_t first = random->Uint64() % size;
  const uint64_t second = (first + 1 + random->Uint64() % (size - 1)) % size;
  return {candidates[first], candidates[second]};
}

}  // namespace

double PrefillLoad(const WorkerView& worker) {
  return Fraction(static_cast<double>(worker.load.backlog_tokens +
                                      worker.unreported_prompt_tokens),
                  static_cast<double>(worker.identity->max_backlog_tokens));
}

double DecodeLoad(const WorkerView& worker) {
  const registry::WorkerIdentity& identity = *worker.identity;
  const double slots = Fraction(
      identity.slots - worker.load.free_slots + worker.unreported_samples,
      identity.slots);
  const double blocks =
      Fraction(static_cast<double>(identity.blocks - worker.load.free_blocks +
                                   worker.unreported_blocks),
               identity.blocks);
  return std::max(slots, blocks);
}

absl::StatusOr<Pair> ChoosePair(const Snapshot& snapshot,
                                const PlacementQuery& query,
                                const Exclusions& exclusions, Random* random) {
  ASSIGN_OR_RETURN(
      const Candidates all_prefill,
      Eligible(snapshot, WorkerRole::kPrefill, query.pinned_prefill,
               query.prompt_tokens, exclusions));
  ASSIGN_OR_RETURN(const Candidates all_decode,
                   Eligible(snapshot, WorkerRole::kDecode, query.pinned_decode,
                            query.positions, exclusions));
  const Candidates prefills = DrawTwo(all_prefill, random);
  const Candidates decodes = DrawTwo(all_decode, random);
  const WorkerView* best_prefill = nullptr;
  const WorkerView* best_decode = nullptr;
  std::pair<double, int> best_score;
  for (const WorkerView* prefill : prefills) {
    for (const WorkerView* decode : decodes) {
      const bool one_node = prefill->identity->node == decode->identity->node;
      const std::pair<double, int> score = {
          PrefillLoad(*prefill) + DecodeLoad(*decode), one_node ? 0 : 1};
      if (best_prefill == nullptr || score < best_score) {
        best_prefill = prefill;
        best_decode = decode;
        best_score = score;
      }
    }
  }
  return Pair{best_prefill->ref(), best_decode->ref()};
}

absl::StatusOr<registry::WorkerRef> ChoosePrefill(const Snapshot& snapshot,
                                                  const PlacementQuery& query,
                                                  const Exclusions& exclusions,
                                                  Random* random) {
  ASSIGN_OR_RETURN(
      const Candidates all,
      Eligible(snapshot, WorkerRole::kPrefill, query.pinned_prefill,
               query.prompt_tokens, exclusions));
  const Candidates two = DrawTwo(all, random);
  const WorkerView* best = two.front();
  for (const WorkerView* worker : two) {
    if (PrefillLoad(*worker) < PrefillLoad(*best)) best = worker;
  }
  return best->ref();
}

}  // namespace baton::router::policy
