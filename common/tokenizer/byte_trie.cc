#include "common/tokenizer/byte_trie.h"

#include "common/base/check.h"

namespace baton::tokenizer {

ByteTrie::ByteTrie() {
  nodes_.push_back({kNone, 0, kNone, 0});
  root_children_.fill(kNone);
}

bool ByteTrie::Insert(absl::string_view literal, int32_t value) {
  CHECK(!literal.empty());
  CHECK_GE(value, 0);
  int32_t node = kRoot;
  for (const char c : literal) {
    const uint8_t byte = static_cast<uint8_t>(c);
    int32_t child = Child(node, byte);
    if (child == kNone) {
      child = num_nodes();
      nodes_.push_back({node, depth(node) + 1, kNone, byte});
      if (node == kRoot) {
        root_children_[byte] = child;
      } else {
        edges_.emplace(Key(node, byte), child);
      }
    }
    node = child;
  }
  Node& last = nodes_[static_cast<size_t>(node)];
  if (last.value != kNone) return false;
  last.value = value;
  return true;
}

ByteTrie::Match ByteTrie::LongestPrefix(absl::string_view bytes) const {
  Match best;
  int32_t node = kRoot;
  for (const char c : bytes) {
    node = Child(node, static_cast<uint8_t>(c));
    if (node == kNone) break;
    if (value(node) != kNone) best = {value(node), depth(node)};
  }
  return best;
}

}  // namespace baton::tokenizer
