#include "common/handoff/row_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::handoff {

namespace {

using kv::Component;
using kv::Region;
using kv::RowRange;

// Whether a layer of the format has the component.
bool Exists(const kv::StateFormat& format, const Region& region) {
  const auto& ratios = format.geometry.ratios;
  if (region.layer < 0 || static_cast<size_t>(region.layer) >= ratios.size()) {
    return false;
  }
  const int32_t ratio = ratios[static_cast<size_t>(region.layer)];
  switch (region.component) {
    case Component::kWindow:
      return true;
    case Component::kC4:
    case Component::kC4Index:
    case Component::kC4Tail:
    case Component::kC4IndexTail:
      return ratio == 4;
    case Component::kC128:
    case Component::kC128Tail:
      return ratio == 128;
  }
  return false;
}

// Ordinal of `row` in `ranges`, or -1.
int64_t Ordinal(const std::vector<RowRange>& ranges, int64_t row) {
  int64_t before = 0;
  for (const RowRange& range : ranges) {
    const int64_t offset = row - range.first;
    if (offset >= 0 && offset % range.stride == 0 &&
        offset / range.stride < range.count) {
      return before + offset / range.stride;
    }
    before += range.count;
  }
  return -1;
}

}  // namespace

RowLedger::RowLedger(const kv::StateFormat& format, int64_t processed) {
  for (const Region& region : kv::Regions(format)) {
    RegionRows rows;
    rows.region = region;
    rows.expected = kv::CompleteRows(format, region.component, processed);
    rows.expected_rows = kv::CountRows(rows.expected);
    rows.arrived.resize(static_cast<size_t>(rows.expected_rows));
    regions_.push_back(std::move(rows));
  }
  DCHECK(std::is_sorted(regions_.begin(), regions_.end(),
                        [](const RegionRows& a, const RegionRows& b) {
                          return a.region < b.region;
                        }));
}

absl::Status RowLedger::CheckShape(const kv::StateFormat& format,
                                   absl::Span<const transfer::Piece> pieces,
                                   int64_t payload_bytes) {
  int64_t left = payload_bytes;
  for (const transfer::Piece& piece : pieces) {
    if (!Exists(format, piece.region)) {
      return absl::DataLossError(
          absl::StrCat("offer names layer ", piece.region.layer, " component ",
                       static_cast<int>(piece.region.component),
                       ", which this StateFormat does not have"));
    }
    const int64_t row_bytes = kv::RowBytes(format, piece.region.component);
    // Compared by division: a count from the wire may be anything.
    if (piece.rows.first < 0 || piece.rows.count < 1 || piece.rows.stride < 1 ||
        piece.rows.count > left / row_bytes) {
      return absl::DataLossError(absl::StrCat(
          "offer of ", payload_bytes, " bytes with rows ", piece.rows.first,
          " + ", piece.rows.count, " x ", piece.rows.stride, " of ",
          kv::ToString(piece.region), ", which it cannot hold"));
    }
    left -= piece.rows.count * row_bytes;
  }
  if (left != 0) {
    return absl::DataLossError(absl::StrCat("offer of ", payload_bytes,
                                            " bytes, its pieces have ",
                                            payload_bytes - left));
  }
  return absl::OkStatus();
}

RowLedger::RegionRows* RowLedger::Find(const Region& region) {
  const auto it = std::lower_bound(
      regions_.begin(), regions_.end(), region,
      [](const RegionRows& a, const Region& b) { return a.region < b; });
  CHECK(it != regions_.end() && it->region == region)
      << "CheckShape let " << kv::ToString(region) << " pass";
  return &*it;
}

absl::Status RowLedger::Claim(absl::Span<const transfer::Piece> pieces) {
  for (const transfer::Piece& piece : pieces) {
    RegionRows* const rows = Find(piece.region);
    int64_t row = piece.rows.first;
    for (int64_t i = 0; i < piece.rows.count; ++i) {
      const int64_t ordinal = Ordinal(rows->expected, row);
      if (ordinal < 0) {
        return absl::DataLossError(absl::StrCat(
            kv::ToString(piece.region), " row ", row, " is not expected"));
      }
      const auto at = static_cast<size_t>(ordinal);
      if (rows->arrived[at]) {
        return absl::DataLossError(absl::StrCat(
            kv::ToString(piece.region), " row ", row, " arrived twice"));
      }
      rows->arrived[at] = true;
      ++rows->arrived_rows;
      // `row` was expected, so it is far from the end of int64_t; a stride is
      // not, and is compared before it is added.
      if (i + 1 < piece.rows.count && piece.rows.stride > INT64_MAX - row) {
        return absl::DataLossError(
            absl::StrCat(kv::ToString(piece.region), " row ", row, " + ",
                         piece.rows.stride, " is not expected"));
      }
      if (i + 1 < piece.rows.count) row += piece.rows.stride;
    }
  }
  return absl::OkStatus();
}

absl::Status RowLedger::Complete() const {
  for (const RegionRows& rows : regions_) {
    if (rows.arrived_rows != rows.expected_rows) {
      return absl::DataLossError(
          absl::StrCat(kv::ToString(rows.region), ": ", rows.arrived_rows,
                       " of ", rows.expected_rows, " rows arrived"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::handoff
