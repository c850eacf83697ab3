#include "common/tokenizer/stop_matcher.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::tokenizer {

absl::StatusOr<std::shared_ptr<const StopSet>> StopSet::Create(
    absl::Span<const std::string> strings) {
  std::shared_ptr<StopSet> out(new StopSet);
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop string ", i, " is empty, expected at least one byte"));
    }
    out->trie_.Insert(strings[i], static_cast<int32_t>(i));
  }
  const ByteTrie& trie = out->trie_;
  const size_t n = static_cast<size_t>(trie.num_nodes());
  out->suffix_.assign(n, ByteTrie::kRoot);
  out->longest_.assign(n, ByteTrie::kNone);
  // By depth, so that a state's suffix is finished before it is needed.
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&trie](int32_t a, int32_t b) {
    return trie.depth(a) < trie.depth(b);
  });
  for (const int32_t state : order) {
    if (state == ByteTrie::kRoot) continue;
    const size_t at = static_cast<size_t>(state);
    const int32_t parent = trie.parent(state);
    if (parent != ByteTrie::kRoot) {
      out->suffix_[at] = out->Next(out->suffix_[static_cast<size_t>(parent)],
                                   trie.byte(state));
    }
    out->longest_[at] =
        trie.value(state) != ByteTrie::kNone
            ? state
            : out->longest_[static_cast<size_t>(out->suffix_[at])];
  }
  return std::shared_ptr<const StopSet>(std::move(out));
}

int32_t StopSet::Next(int32_t state, uint8_t byte) const {
  for (;;) {
    const int32_t child = trie_.Child(state, byte);
    if (child != ByteTrie::kNone) return child;
    if (state == ByteTrie::kRoot) return ByteTrie::kRoot;
    state = suffix_[static_cast<size_t>(state)];
  }
}

std::optional<StopMatch> StopMatcher::Push(absl::string_view bytes) {
  if (match_.has_value()) return match_;
  for (const char c : bytes) {
    state_ = stops_->Next(state_, static_cast<uint8_t>(c));
    ++pushed_bytes_;
    const int32_t found = stops_->longest_[static_cast<size_t>(state_)];
    if (found != ByteTrie::kNone) {
      match_ = StopMatch{pushed_bytes_ - stops_->trie_.depth(found),
                         pushed_bytes_, stops_->trie_.value(found)};
      break;
    }
  }
  return match_;
}

int64_t StopMatcher::safe_bytes() const {
  if (match_.has_value()) return match_->begin;
  if (finished_) return pushed_bytes_;
  // The state is the longest suffix of the output that begins a stop string.
  return pushed_bytes_ - stops_->trie_.depth(state_);
}

}  // namespace baton::tokenizer
