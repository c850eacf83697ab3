// Byte-pair merging by rank (model.md 8.1): the adjacent pair of lowest rank is
// merged first, the leftmost of equal ranks, until no adjacent pair is in the
// list of merges.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Immutable after construction, hence thread-safe.
class BpeMerger final {
 public:
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t merged = 0;
  };
  // `byte_ids`: token id of each single byte. `merges` in order of rank; pairs
  // are distinct (the reader checks that).
  BpeMerger(const std::array<int32_t, 256>& byte_ids,
            const std::vector<Merge>& merges);

  // Appends the ids of one piece. O(n log n) in its bytes, at most 2^31 - 1.
  void Encode(absl::string_view piece, std::vector<int32_t>* ids) const;

  // The two ways that Encode chooses between by length, for comparison.
  void EncodeShort(absl::string_view piece, std::vector<int32_t>* ids) const;
  void EncodeLong(absl::string_view piece, std::vector<int32_t>* ids) const;

 private:
  struct Result {
    int32_t rank;
    int32_t merged;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  // Rank kNoRank if the pair does not merge.
  Result Find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Result> merges_;
};

}  // namespace baton::tokenizer
