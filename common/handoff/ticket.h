// A receiver's promise of blocks, slots and a batch seat (design.md 2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"

namespace baton::handoff {

struct Ticket {
  HandoffId handoff;
  Attempt attempt = 0;
  std::string receiver;  // worker name
  Incarnation receiver_incarnation = 0;
  std::vector<std::string> endpoints;  // link control, one per rank
  Sha256Digest state_format_hash{};
  absl::Duration lease;  // left when the ticket was made
};

}  // namespace baton::handoff
