// The sender's list of rows still to send for one attempt.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/kv/state_format.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// Not thread-safe.
class SegmentPlan final {
 public:
  explicit SegmentPlan(const kv::StateFormat& format);

  // Growing rows that are complete after `processed` tokens and were not listed
  // before. A smaller `processed` than before adds nothing.
  void AddGrowing(int64_t processed);
  // The rest: growing rows and the boundary rows (rings, tails) of `processed`
  // tokens. Called once.
  void AddRest(int64_t processed);

  // Every region of the format, in its order: what the manifest lists.
  const std::vector<kv::Region>& regions() const { return regions_; }
  bool empty() const { return pieces_.empty(); }
  int64_t bytes() const { return bytes_; }
  // Takes rows of at most `max_bytes` bytes (at least one row: `max_bytes` is
  // not less than the largest row) off the list, in order.
  std::vector<transfer::Piece> Take(int64_t max_bytes);

 private:
  void Add(const kv::Region& region, const kv::RowRange& rows);

  const kv::StateFormat format_;
  const std::vector<kv::Region> regions_;
  std::vector<int64_t> listed_rows_;  // of growing regions
  std::deque<transfer::Piece> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace baton::handoff
