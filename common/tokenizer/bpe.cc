#include "common/tokenizer/bpe.h"

#include <limits>
#include <queue>
#include <utility>

#include "common/base/check.h"

namespace baton::tokenizer {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to this length scanning all pairs for the lowest beats a heap.
constexpr size_t kShortBytes = 32;

}  // namespace

BpeMerger::BpeMerger(const std::array<int32_t, 256>& byte_ids,
                     const std::vector<Merge>& merges)
    : byte_ids_(byte_ids) {
  merges_.reserve(merges.size());
  int32_t rank = 0;
  for (const Merge& merge : merges) {
    const bool added =
        merges_
            .emplace(Key(merge.left, merge.right), Result{rank, merge.merged})
            .second;
    CHECK(added) << "merge " << rank << " is listed twice";
    ++rank;
  }
}

BpeMerger::Result BpeMerger::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(Key(left, right));
  return it == merges_.end() ? Result{kNoRank, 0} : it->second;
}

void BpeMerger::Encode(absl::string_view piece,
                       std::vector<int32_t>* ids) const {
  if (piece.size() <= kShortBytes) {
    EncodeShort(piece, ids);
  } else {
    EncodeLong(piece, ids);
  }
}

void BpeMerger::EncodeShort(absl::string_view piece,
                            std::vector<int32_t>* ids) const {
  if (piece.empty()) return;
  // Symbols stay packed at the front: symbol i is followed by symbol i + 1.
  std::vector<int32_t> symbols;
  std::vector<Result> pairs;
  symbols.reserve(piece.size());
  pairs.reserve(piece.size());
  for (const char c : piece) {
    symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  }
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    pairs.push_back(Find(symbols[i], symbols[i + 1]));
  }
  for (;;) {
    size_t best = pairs.size();
    int32_t best_rank = kNoRank;
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (pairs[i].rank < best_rank) {
        best_rank = pairs[i].rank;
        best = i;
      }
    }
    if (best == pairs.size()) break;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(best);
    symbols[best] = pairs[best].merged;
    symbols.erase(symbols.begin() + at + 1);
    pairs.erase(pairs.begin() + at);
    if (best < pairs.size()) {
      pairs[best] = Find(symbols[best], symbols[best + 1]);
    }
    if (best > 0) pairs[best - 1] = Find(symbols[best - 1], symbols[best]);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void BpeMerger::EncodeLong(absl::string_view piece,
                           std::vector<int32_t>* ids) const {
  if (piece.empty()) return;
  struct Symbol {
    int32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    // The merge with the next symbol; kNoRank if none, or if this symbol was
    // merged into its predecessor.
    Result pair;
  };
  CHECK_LE(piece.size(),
           static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  const int32_t n = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  const auto at = [&symbols](int32_t i) -> Symbol& {
    return symbols[static_cast<size_t>(i)];
  };
  // Lowest rank first, then leftmost.
  using Entry = std::pair<int32_t, int32_t>;
  std::vector<Entry> initial;
  for (int32_t i = 0; i < n; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    at(i) = {byte_ids_[byte], i - 1, i + 1 < n ? i + 1 : -1, {kNoRank, 0}};
  }
  for (int32_t i = 0; i + 1 < n; ++i) {
    at(i).pair = Find(at(i).id, at(i + 1).id);
    if (at(i).pair.rank != kNoRank) initial.emplace_back(at(i).pair.rank, i);
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue(
      std::greater<Entry>(), std::move(initial));

  const auto refresh = [&](int32_t i) {
    Symbol& symbol = at(i);
    symbol.pair = symbol.next < 0 ? Result{kNoRank, 0}
                                  : Find(symbol.id, at(symbol.next).id);
    if (symbol.pair.rank != kNoRank) queue.emplace(symbol.pair.rank, i);
  };
  while (!queue.empty()) {
    const auto [rank, i] = queue.top();
    queue.pop();
    Symbol& symbol = at(i);
    // A rank names one pair, so an entry is current if the rank still is.
    if (symbol.pair.rank != rank) continue;
    Symbol& gone = at(symbol.next);
    symbol.id = symbol.pair.merged;
    symbol.next = gone.next;
    if (symbol.next >= 0) at(symbol.next).previous = i;
    gone.pair = {kNoRank, 0};
    refresh(i);
    if (symbol.previous >= 0) refresh(symbol.previous);
  }
  for (int32_t i = 0; i >= 0; i = at(i).next) ids->push_back(at(i).id);
}

}  // namespace baton::tokenizer
