// SHA-256 and the chained block hash of token ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(absl::string_view bytes);

// SHA-256 of bytes that arrive in pieces. Used by one thread; Finish is called
// once and is the last call.
class Sha256Hasher final {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;

  void Update(absl::string_view bytes);
  Sha256Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string HexOf(const Sha256Digest& digest);
inline std::string BytesOf(const Sha256Digest& digest) {
  return std::string(digest.begin(), digest.end());
}

// Hash of a whole prompt: SHA-256 over the ids as little-endian int32.
// Router, prefill and decode each compute it and must agree.
Sha256Digest HashTokenIds(absl::Span<const int32_t> ids);

// Chained hash of each full block of `block_tokens` ids: h[i] =
// SHA-256(h[i-1] || ids of block i), h[-1] = root. The root covers the model
// digest, the StateFormat hash and the tenant salt.
std::vector<Sha256Digest> HashBlocks(const Sha256Digest& root,
                                     absl::Span<const int32_t> ids,
                                     int32_t block_tokens);

}  // namespace baton
