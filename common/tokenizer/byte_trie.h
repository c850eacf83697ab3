// Prefix tree over bytes: longest literal at a position, and the skeleton of
// the stop string automaton.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Not thread-safe while inserting; const calls may run concurrently afterwards.
class ByteTrie final {
 public:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;

  ByteTrie();

  // Adds `literal` (not empty) with a value >= 0. False if it was there.
  bool Insert(absl::string_view literal, int32_t value);

  // Child of `node` by `byte`, or kNone. O(1).
  int32_t Child(int32_t node, uint8_t byte) const {
    if (node == kRoot) return root_children_[byte];
    const auto it = edges_.find(Key(node, byte));
    return it == edges_.end() ? kNone : it->second;
  }
  // Value of the literal that ends at `node`, or kNone.
  int32_t value(int32_t node) const { return At(node).value; }
  int32_t parent(int32_t node) const { return At(node).parent; }
  uint8_t byte(int32_t node) const { return At(node).byte; }
  // Length in bytes of the literal prefix that `node` stands for.
  int32_t depth(int32_t node) const { return At(node).depth; }
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size()); }
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    int32_t value = kNone;  // kNone: no literal starts here
    int64_t length = 0;
  };
  // Longest literal that is a prefix of `bytes`.
  Match LongestPrefix(absl::string_view bytes) const;

 private:
  struct Node {
    int32_t parent;
    int32_t depth;
    int32_t value;
    uint8_t byte;
  };
  static uint64_t Key(int32_t node, uint8_t byte) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8) | byte;
  }
  const Node& At(int32_t node) const {
    return nodes_[static_cast<size_t>(node)];
  }

  std::vector<Node> nodes_;
  std::array<int32_t, 256> root_children_;
  absl::flat_hash_map<uint64_t, int32_t> edges_;
};

}  // namespace baton::tokenizer
