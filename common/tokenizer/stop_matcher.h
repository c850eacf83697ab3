// Finds stop strings in a stream of output bytes, across token and UTF-8
// borders, without ever letting a part of one out too early.
//
//   ASSIGN_OR_RETURN(auto stops, StopSet::Create({"</end>", "\n\n"}));
//   StopMatcher matcher(stops);
//   if (auto match = matcher.Push(text)) { /* cut the output at match->begin */
//   }
//   /* else output bytes before matcher.safe_bytes() may be sent */
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tokenizer/byte_trie.h"

namespace baton::tokenizer {

// Aho-Corasick automaton over all stop strings of a request. Immutable, hence
// thread-safe and shared by the samples of the request. Built in time and
// memory linear in the total length (about 60 bytes per byte).
class StopSet final {
 public:
  // No strings at all is allowed: nothing ever matches. InvalidArgument if one
  // is empty. Strings may repeat; the lowest index is then reported. How many
  // there may be is the business of whoever admits the request.
  static absl::StatusOr<std::shared_ptr<const StopSet>> Create(
      absl::Span<const std::string> strings);

  bool empty() const { return trie_.empty(); }

 private:
  friend class StopMatcher;
  StopSet() = default;
  // State after one more byte.
  int32_t Next(int32_t state, uint8_t byte) const;

  ByteTrie trie_;
  // By state: the state of its longest proper suffix in the tree, and the
  // state of the longest stop string that is a suffix of it (itself included).
  std::vector<int32_t> suffix_;
  std::vector<int32_t> longest_;  // ByteTrie::kNone: none
};

struct StopMatch {
  int64_t begin = 0;  // offset of its first byte in the whole output
  int64_t end = 0;    // offset after its last byte
  int32_t index = 0;  // which string of StopSet::Create
};

// The match that ends first wins; of those that end at the same byte, the
// longest, which is the one that begins first. State is one integer besides the
// counts; time is linear in the bytes pushed. Not thread-safe.
class StopMatcher final {
 public:
  explicit StopMatcher(std::shared_ptr<const StopSet> stops)
      : stops_(std::move(stops)) {}

  // Feeds the next output bytes; returns the match once there is one, and the
  // same one on every later call, which ignores its bytes.
  std::optional<StopMatch> Push(absl::string_view bytes);

  // End of generation without a match: everything held back becomes safe.
  void Finish() { finished_ = true; }

  // Output bytes, from the start, that no later match can contain: what may be
  // sent. Never decreases. After a match: the bytes before it.
  // If each pushed piece and each stop string is valid UTF-8, it never falls
  // inside a character.
  int64_t safe_bytes() const;

  const std::optional<StopMatch>& match() const { return match_; }

 private:
  std::shared_ptr<const StopSet> stops_;
  int32_t state_ = ByteTrie::kRoot;
  int64_t pushed_bytes_ = 0;
  bool finished_ = false;
  std::optional<StopMatch> match_;
};

}  // namespace baton::tokenizer
