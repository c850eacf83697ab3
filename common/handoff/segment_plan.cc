#include "common/handoff/segment_plan.h"

#include <algorithm>

#include "common/base/fault_point.h"

namespace baton::handoff {

namespace {

// More pieces than this would make an Offer larger than its use.
constexpr size_t kMaxPieces = 1024;

// A sender that forgot a region, when the fault is armed.
std::vector<kv::Region> RegionsToSend(const kv::StateFormat& format) {
  std::vector<kv::Region> regions = kv::Regions(format);
  std::erase_if(regions, [](const kv::Region& region) {
    return BATON_FAULT("handoff.omit_region", kv::ToString(region)) ||
           BATON_FAULT("handoff.omit_region",
                       kv::ComponentName(region.component));
  });
  return regions;
}

}  // namespace

SegmentPlan::SegmentPlan(const kv::StateFormat& format)
    : format_(format),
      regions_(RegionsToSend(format)),
      listed_rows_(regions_.size()) {}

void SegmentPlan::Add(const kv::Region& region, const kv::RowRange& rows) {
  if (BATON_FAULT("handoff.omit_region_rows", kv::ToString(region))) return;
  pieces_.push_back({region, rows});
  bytes_ += rows.count * kv::RowBytes(format_, region.component);
}

void SegmentPlan::AddGrowing(int64_t processed) {
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (!kv::IsGrowing(regions_[i].component)) continue;
    // Growing rows are numbered from 0 without gaps.
    const int64_t complete = kv::CountRows(
        kv::CompleteRows(format_, regions_[i].component, processed));
    if (complete <= listed_rows_[i]) continue;
    Add(regions_[i],
        {.first = listed_rows_[i], .count = complete - listed_rows_[i]});
    listed_rows_[i] = complete;
  }
}

void SegmentPlan::AddRest(int64_t processed) {
  AddGrowing(processed);
  for (const kv::Region& region : regions_) {
    if (kv::IsGrowing(region.component)) continue;
    int64_t until = processed;
    const bool overlapping = region.component == kv::Component::kC4Tail ||
                             region.component == kv::Component::kC4IndexTail;
    if (overlapping && processed % 4 == 0 &&
        BATON_FAULT("handoff.drop_half_a", kv::ToString(region))) {
      continue;
    }
    if (region.component != kv::Component::kWindow &&
        BATON_FAULT("handoff.tail_off_by_one", kv::ToString(region))) {
      until = std::max<int64_t>(until - 1, 0);
    }
    for (const kv::RowRange& rows :
         kv::CompleteRows(format_, region.component, until)) {
      Add(region, rows);
    }
  }
}

std::vector<transfer::Piece> SegmentPlan::Take(int64_t max_bytes) {
  std::vector<transfer::Piece> taken;
  int64_t left = max_bytes;
  while (!pieces_.empty() && taken.size() < kMaxPieces) {
    transfer::Piece& next = pieces_.front();
    const int64_t row_bytes = kv::RowBytes(format_, next.region.component);
    const int64_t count = std::min(next.rows.count, left / row_bytes);
    if (count == 0) break;
    taken.push_back(next);
    taken.back().rows.count = count;
    left -= count * row_bytes;
    next.rows.first += count * next.rows.stride;
    next.rows.count -= count;
    if (next.rows.count == 0) pieces_.pop_front();
  }
  bytes_ -= max_bytes - left;
  return taken;
}

}  // namespace baton::handoff
