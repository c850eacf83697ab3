// Distinct types for distinct ids (style.md B4, glossary).
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/random.h"

namespace baton {

// 128-bit id, minted from Random by the router. `Tag` keeps kinds apart.
template <typename Tag>
struct Id128 {
  uint64_t hi = 0;
  uint64_t lo = 0;

  auto operator<=>(const Id128&) const = default;
  bool is_zero() const { return hi == 0 && lo == 0; }

  static Id128 Mint(Random* random) {
    return Id128{random->Uint64(), random->Uint64() | 1};
  }

  template <typename H>
  friend H AbslHashValue(H h, const Id128& id) {
    return H::combine(std::move(h), id.hi, id.lo);
  }
};

// One request inside the cluster; the client's own request_id is only a label.
using RequestId = Id128<struct RequestIdTag>;
// One hand-off of one request; stable over attempts.
using HandoffId = Id128<struct HandoffIdTag>;

// 32 lower-case hex digits, and back. The wire form is 16 bytes, big-endian.
std::string Id128ToHex(uint64_t hi, uint64_t lo);
std::string Id128ToBytes(uint64_t hi, uint64_t lo);
// InvalidArgument unless exactly 16 bytes.
absl::StatusOr<std::pair<uint64_t, uint64_t>> Id128FromBytes(
    absl::string_view bytes);

template <typename Tag>
std::string ToHex(const Id128<Tag>& id) {
  return Id128ToHex(id.hi, id.lo);
}
template <typename Tag>
std::string ToBytes(const Id128<Tag>& id) {
  return Id128ToBytes(id.hi, id.lo);
}
template <typename Id>
absl::StatusOr<Id> FromBytes(absl::string_view bytes) {
  auto parts = Id128FromBytes(bytes);
  if (!parts.ok()) return parts.status();
  return Id{parts->first, parts->second};
}

// Number of a try at one hand-off, from 1. Rows of an older attempt are void.
using Attempt = int32_t;
// Changes each time a worker process starts. Never 0.
using Incarnation = uint64_t;
// Number of a live link between two workers; a change voids what was in flight.
using LinkEpoch = uint64_t;

// Index of a block in a worker's pool.
enum class BlockId : int32_t {};
inline constexpr BlockId kNoBlock{-1};
inline int32_t Index(BlockId id) { return static_cast<int32_t>(id); }

}  // namespace baton
