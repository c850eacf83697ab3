// StateFormat: what cached state looks like (design.md 4). It is data, it is
// hashed, and it must match on the two sides of a link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/hash.h"

namespace baton::kv {

// Positions per block: the unit of block tables, prefix hashes and pages.
inline constexpr int32_t kBlockTokens = 256;

enum class RowEncoding : uint8_t {
  kF32 = 1,   // 4 bytes per channel; for the `exact` policy
  kBf16 = 2,  // 2 bytes per channel
};

// Kind of cached state (glossary "component").
enum class Component : uint8_t {
  kWindow = 1,       // ring per slot, one row per token
  kC4 = 2,           // page rows, one per 4 tokens
  kC4Index = 3,      // page rows, one per 4 tokens
  kC128 = 4,         // page rows, one per 128 tokens
  kC4Tail = 5,       // ring per slot, fp32 half rows (see CompleteRows)
  kC4IndexTail = 6,  // likewise, for the indexer's compressor
  kC128Tail = 7,     // one fp32 row per slot: (max, sum, value) per channel
};
// "window", "c4", ... as in the glossary and in metric labels.
absl::string_view ComponentName(Component component);
std::vector<Component> AllComponents();

struct IndexRowFormat {
  RowEncoding encoding = RowEncoding::kF32;
  // Walsh-Hadamard applied to rows; the query side derives from it, so a
  // one-sided rotation cannot be configured.
  bool rotated = false;
  bool operator==(const IndexRowFormat&) const = default;
};

// What the model's config fixes. Ratios are 0, 4 or 128, one per layer.
struct StateGeometry {
  std::vector<int32_t> ratios;
  int32_t head_dim = 0;        // channels of window, c4 and c128 rows
  int32_t index_head_dim = 0;  // channels of c4_index rows
  int32_t window_tokens = 0;   // tokens a query sees raw, itself included
  // Ring capacity >= window_tokens + max_draft; address = position % capacity.
  int32_t window_capacity = 0;
  bool operator==(const StateGeometry&) const = default;
};

struct StateFormat {
  RowEncoding kv_row = RowEncoding::kF32;
  IndexRowFormat index_row;
  StateGeometry geometry;

  // SHA-256 over a canonical text of every field.
  Sha256Digest Hash() const;
  // One line for logs, metrics and `baton inspect`.
  std::string ToString() const;
  bool operator==(const StateFormat&) const = default;
};

// Presets by name: "f32", "bf16" (all rows in that encoding, unrotated). Other
// names: InvalidArgument with the list.
absl::StatusOr<StateFormat> StateFormatFromName(absl::string_view name,
                                                const StateGeometry& geometry);

// One component of one layer.
struct Region {
  int32_t layer = 0;
  Component component = Component::kWindow;
  auto operator<=>(const Region&) const = default;
};
std::string ToString(const Region& region);  // "l2.c4"

// Every region that a model of this format has, in a fixed order (layer, then
// component). Sender, receiver and manifest use this list and no other.
std::vector<Region> Regions(const StateFormat& format);

// Bytes of one row as it crosses the wire and lies in memory; multiple of 16.
int64_t RowBytes(const StateFormat& format, Component component);

// Rows first, first + stride, ... (count of them).
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t stride = 1;
  bool operator==(const RowRange&) const = default;
};

// The rows of a component that exist, complete, after `processed` tokens and
// that a sequence needs to continue (model.md 7.5). Row numbers:
//   window              position, the last min(processed, window_tokens - 1)
//   c4, c4_index        w = 0 .. processed/4 - 1
//   c128                w = 0 .. processed/128 - 1
//   c4_tail, ..index..  2 * position + half; half A (0) of the last complete
//                       window's 4 tokens (also when processed % 4 == 0) and
//                       both halves of the processed % 4 open tokens
//   c128_tail           w = processed/128 when processed % 128 != 0
// The one function used by sender, receiver and manifest. Empty ranges are
// left out.
std::vector<RowRange> CompleteRows(const StateFormat& format,
                                   Component component, int64_t processed);
int64_t CountRows(const std::vector<RowRange>& ranges);

// Whether rows of this component are written once and never again, so that
// they may be sent as soon as they are complete; the others go with the seal.
bool IsGrowing(Component component);

// Blocks that hold `positions` positions.
inline int32_t BlocksFor(int64_t positions) {
  return static_cast<int32_t>((positions + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace baton::kv
