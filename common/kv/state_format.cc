#include "common/kv/state_format.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace baton::kv {

namespace {

absl::string_view EncodingName(RowEncoding encoding) {
  switch (encoding) {
    case RowEncoding::kF32:
      return "f32";
    case RowEncoding::kBf16:
      return "bf16";
  }
  CHECK(false) << "row encoding " << static_cast<int>(encoding);
  return "";
}

int64_t EncodingBytes(RowEncoding encoding) {
  return encoding == RowEncoding::kF32 ? 4 : 2;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

absl::string_view ComponentName(Component component) {
  switch (component) {
    case Component::kWindow:
      return "window";
    case Component::kC4:
      return "c4";
    case Component::kC4Index:
      return "c4_index";
    case Component::kC128:
      return "c128";
    case Component::kC4Tail:
      return "c4_tail";
    case Component::kC4IndexTail:
      return "c4_index_tail";
    case Component::kC128Tail:
      return "c128_tail";
  }
  CHECK(false) << "component " << static_cast<int>(component);
  return "";
}

std::vector<Component> AllComponents() {
  return {Component::kWindow,  Component::kC4,     Component::kC4Index,
          Component::kC128,    Component::kC4Tail, Component::kC4IndexTail,
          Component::kC128Tail};
}

std::string StateFormat::ToString() const {
  return absl::StrCat("kv_row=", EncodingName(kv_row),
                      " index_row=", EncodingName(index_row.encoding),
                      index_row.rotated ? ",rotated" : ",unrotated",
                      " head_dim=", geometry.head_dim,
                      " index_head_dim=", geometry.index_head_dim,
                      " window_tokens=", geometry.window_tokens,
                      " window_capacity=", geometry.window_capacity,
                      " ratios=", absl::StrJoin(geometry.ratios, ","));
}

Sha256Digest StateFormat::Hash() const {
  // The prefix is the version of row layouts themselves: it changes when the
  // bytes of a row change without a field changing.
  return Sha256(absl::StrCat("baton StateFormat 1 ", ToString()));
}

absl::StatusOr<StateFormat> StateFormatFromName(absl::string_view name,
                                                const StateGeometry& geometry) {
  StateFormat format;
  format.geometry = geometry;
  if (name == "f32") {
    format.kv_row = RowEncoding::kF32;
    format.index_row.encoding = RowEncoding::kF32;
    return format;
  }
  if (name == "bf16") {
    format.kv_row = RowEncoding::kBf16;
    format.index_row.encoding = RowEncoding::kBf16;
    return format;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "StateFormat '", name, "' is unknown; expected one of: f32, bf16"));
}

std::string ToString(const Region& region) {
  return absl::StrCat("l", region.layer, ".", ComponentName(region.component));
}

std::vector<Region> Regions(const StateFormat& format) {
  std::vector<Region> regions;
  for (size_t i = 0; i < format.geometry.ratios.size(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    const int32_t ratio = format.geometry.ratios[i];
    CHECK(ratio == 0 || ratio == 4 || ratio == 128)
        << "layer " << layer << " has ratio " << ratio;
    regions.push_back({layer, Component::kWindow});
    if (ratio == 4) {
      regions.push_back({layer, Component::kC4});
      regions.push_back({layer, Component::kC4Index});
      regions.push_back({layer, Component::kC4Tail});
      regions.push_back({layer, Component::kC4IndexTail});
    } else if (ratio == 128) {
      regions.push_back({layer, Component::kC128});
      regions.push_back({layer, Component::kC128Tail});
    }
  }
  return regions;
}

int64_t RowBytes(const StateFormat& format, Component component) {
  const int64_t head = format.geometry.head_dim;
  const int64_t index_head = format.geometry.index_head_dim;
  switch (component) {
    case Component::kWindow:
    case Component::kC4:
    case Component::kC128:
      return RoundUp(head * EncodingBytes(format.kv_row), 16);
    case Component::kC4Index:
      return RoundUp(index_head * EncodingBytes(format.index_row.encoding), 16);
    case Component::kC4Tail:  // (kvraw, g) of one half
      return RoundUp(2 * head * 4, 16);
    case Component::kC4IndexTail:
      return RoundUp(2 * index_head * 4, 16);
    case Component::kC128Tail:  // (max, sum, value)
      return RoundUp(3 * head * 4, 16);
  }
  CHECK(false) << "component " << static_cast<int>(component);
  return 0;
}

std::vector<RowRange> CompleteRows(const StateFormat& format,
                                   Component component, int64_t processed) {
  CHECK_GE(processed, 0);
  std::vector<RowRange> rows;
  const auto add = [&rows](const RowRange& range) {
    if (range.count > 0) rows.push_back(range);
  };
  switch (component) {
    case Component::kWindow: {
      // The oldest row of a full window is not seen by the next query, which
      // counts itself (model.md 7.5).
      const int64_t count =
          std::min<int64_t>(processed, format.geometry.window_tokens - 1);
      add({.first = processed - count, .count = count});
      break;
    }
    case Component::kC4:
    case Component::kC4Index:
      add({.first = 0, .count = processed / 4});
      break;
    case Component::kC128:
      add({.first = 0, .count = processed / 128});
      break;
    case Component::kC4Tail:
    case Component::kC4IndexTail: {
      const int64_t open = processed / 4 * 4;  // first token not pooled
      if (open > 0) add({.first = 2 * (open - 4), .count = 4, .stride = 2});
      add({.first = 2 * open, .count = 2 * (processed - open)});
      break;
    }
    case Component::kC128Tail:
      add({.first = processed / 128, .count = processed % 128 == 0 ? 0 : 1});
      break;
  }
  return rows;
}

int64_t CountRows(const std::vector<RowRange>& ranges) {
  int64_t count = 0;
  for (const RowRange& range : ranges) count += range.count;
  return count;
}

bool IsGrowing(Component component) {
  return component == Component::kC4 || component == Component::kC4Index ||
         component == Component::kC128;
}

}  // namespace baton::kv
