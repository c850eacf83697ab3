// A sender over one rig and a receiver over another, joined by an in-process or
// a TCP link: moves real cached state as the workers do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/handoff/receiver.h"
#include "common/handoff/sender.h"
#include "common/transfer/in_process.h"
#include "tests/numeric/oracle_support.h"

namespace baton::numeric {

// Not thread-safe. Both rigs outlive it and have one StateFormat.
class HandoffPair final {
 public:
  static absl::StatusOr<std::unique_ptr<HandoffPair>> Create(Rig* from,
                                                             Rig* to);
  ~HandoffPair();

  // What arrived: a sequence of `to` with all rows, and the last logits.
  struct Arrived {
    Rig::Sequence sequence;
    std::vector<float> last_logits;
  };
  // Runs `prompt` on the sending rig in chunks, sends complete rows after each
  // and the rest at the seal, commits, and releases the sender's side. The
  // arrived sequence has room for `max_positions`.
  absl::StatusOr<Arrived> Move(absl::Span<const int32_t> prompt, int64_t chunk,
                               int64_t max_positions);

 private:
  HandoffPair(Rig* from, Rig* to) : from_(from), to_(to) {}

  Rig* const from_;
  Rig* const to_;
  uint64_t next_id_ = 1;
  transfer::InProcessNetwork network_;
  std::unique_ptr<handoff::Receiver> receiver_;
  std::unique_ptr<handoff::Sender> sender_;
};

}  // namespace baton::numeric
