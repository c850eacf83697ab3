// Exact account of the rows that one attempt of a hand-off has brought: which
// rows the receiver's own StateFormat expects, and which of them arrived.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv/state_format.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// Not thread-safe. One bit per expected row.
class RowLedger final {
 public:
  // Expects CompleteRows(processed) of every region of `format`.
  RowLedger(const kv::StateFormat& format, int64_t processed);

  // Whether the pieces could be rows of this format at all, and hold
  // `payload_bytes` bytes. Constant time per piece: rows are not looked at.
  // DataLoss, naming the piece.
  static absl::Status CheckShape(const kv::StateFormat& format,
                                 absl::Span<const transfer::Piece> pieces,
                                 int64_t payload_bytes);

  // Marks the rows of `pieces` (CheckShape passed) as arrived. DataLoss, naming
  // region and row, when one is not expected or is there already: nothing may
  // be scattered then and the attempt is void.
  absl::Status Claim(absl::Span<const transfer::Piece> pieces);

  // OK when every expected row arrived; otherwise DataLoss, naming the first
  // region with rows missing and their number.
  absl::Status Complete() const;

 private:
  struct RegionRows {
    kv::Region region;
    std::vector<kv::RowRange> expected;
    int64_t expected_rows = 0;
    int64_t arrived_rows = 0;
    std::vector<bool> arrived;  // by ordinal in `expected`
  };

  RegionRows* Find(const kv::Region& region);

  std::vector<RegionRows> regions_;  // sorted by region
};

}  // namespace baton::handoff
