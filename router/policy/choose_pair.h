// Placement: which prefill and decode worker serve a request.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "router/registry/worker.h"

namespace baton::router::policy {

// What this request already learned, by worker name.
struct Exclusions {
  // Refused for lack of capacity: not asked again in this round.
  std::set<std::string> refused;
  // Failed while they served this request: used again only if nobody else is
  // left (hazards.md P18 bounds the attempts).
  std::set<std::string> failed;
};

struct PlacementQuery {
  int64_t positions = 0;       // of each sample, at decode
  int64_t prompt_tokens = 0;   // positions at prefill
  std::string pinned_prefill;  // empty: any
  std::string pinned_decode;   // empty: any
};

struct Pair {
  registry::WorkerRef prefill;
  registry::WorkerRef decode;
};

// Fraction of the worker's capacity that is taken, with this router's own
// unreported requests added; 0 is idle, about 1 is full.
double PrefillLoad(const registry::WorkerView& worker);
double DecodeLoad(const registry::WorkerView& worker);

// Power of two choices for the pair: two workers of each role are drawn at
// random, and the pair of least total load is taken; a tie goes to workers of
// one node, then to the draw. Workers that refused or failed lately are drawn
// only when no other is eligible. O(workers).
//
// Errors, with the reason of request::InfoOf:
//   UNAVAILABLE kNoWorker          nobody serves the role
//   RESOURCE_EXHAUSTED kOverloaded all that serve it refused in this round
//   INVALID_ARGUMENT kNeverFits    nobody has that many positions
//   INVALID_ARGUMENT kInvalidField a pinned worker is unknown
absl::StatusOr<Pair> ChoosePair(const registry::Snapshot& snapshot,
                                const PlacementQuery& query,
                                const Exclusions& exclusions, Random* random);

// The same for a prefill worker alone, to a decode worker that already holds a
// reservation (second attempt).
absl::StatusOr<registry::WorkerRef> ChoosePrefill(
    const registry::Snapshot& snapshot, const PlacementQuery& query,
    const Exclusions& exclusions, Random* random);

}  // namespace baton::router::policy
