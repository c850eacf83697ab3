// Byte-level BPE tokenizer as tokenizer.json describes it (model.md 8.1): added
// tokens are matched literally, the rest passes the split stages of the file
// and is merged by rank. No offsets, no normalisation, no templates.
//
//   ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromFile(path));
//   ASSIGN_OR_RETURN(auto ids, tokenizer->Encode(text, AddedTokens::kIgnore));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/byte_trie.h"
#include "common/tokenizer/split_pattern.h"
#include "common/tokenizer/tokenizer_file.h"

namespace baton::tokenizer {

enum class AddedTokens {
  kMatch,   // literals of added tokens become those tokens
  kIgnore,  // they are ordinary text: for content written by users, so that it
            // can never hold a control token
};

// Immutable, hence thread-safe.
class Tokenizer final {
 public:
  // `json`: text of tokenizer.json. InvalidArgument names what is wrong or not
  // supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(
      absl::string_view json);
  // NotFound, ResourceExhausted (over 256 MiB) or Create's errors, with the
  // path.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromFile(
      const std::string& path);

  // Ids of `text`; empty text gives none. InvalidArgument if it is not valid
  // UTF-8 (with the byte offset) or longer than 2^31 - 1 bytes. O(n log n).
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              AddedTokens added) const;

  // The bytes that the ids stand for, added tokens as their literal; a sequence
  // need not be valid UTF-8. InvalidArgument on an unknown id.
  absl::StatusOr<std::string> DecodeBytes(absl::Span<const int32_t> ids) const;

  // True if the id has a token. Ids below vocab_size() may have none.
  bool Contains(int32_t id) const;
  // Bytes of one token; valid as long as the tokenizer. InvalidArgument on an
  // unknown id.
  absl::StatusOr<absl::string_view> TokenBytes(int32_t id) const;
  // BOS, EOS, padding and whatever else the file flags; false for unknown ids.
  bool IsSpecial(int32_t id) const;
  // Any added token, special or not.
  bool IsAdded(int32_t id) const;
  // Id of the token whose bytes are exactly `bytes`, an added token if there is
  // one.
  std::optional<int32_t> IdOf(absl::string_view bytes) const;

  // Largest id + 1.
  int32_t vocab_size() const {
    return static_cast<int32_t>(spec_.tokens.size());
  }
  // SHA-256 over tokens, flags, merges and patterns: two tokenizers with the
  // same hash give the same ids for each text and the same text for each id.
  const Sha256Digest& vocabulary_hash() const { return vocabulary_hash_; }

 private:
  // What one call to Encode carries through the stages.
  struct Encoding;

  explicit Tokenizer(TokenizerSpec spec);
  absl::Status EncodeAdded(absl::string_view text, const ByteTrie* first,
                           const ByteTrie* second, Encoding* out) const;
  absl::Status EncodeStage(absl::string_view text, size_t stage,
                           Encoding* out) const;

  TokenizerSpec spec_;
  BpeMerger merger_;
  std::vector<std::unique_ptr<SplitPattern>> stages_;
  ByteTrie first_added_;   // tokens matched in the first pass
  ByteTrie second_added_;  // and in what it leaves
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // by spec_'s bytes
  Sha256Digest vocabulary_hash_{};
};

}  // namespace baton::tokenizer
