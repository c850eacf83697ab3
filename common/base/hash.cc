#include "common/base/hash.h"

#include <openssl/sha.h>

#include <bit>

#include "absl/strings/escaping.h"

namespace baton {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as little-endian int32");

Sha256Digest Sha256(absl::string_view bytes) {
  Sha256Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         out.data());
  return out;
}

std::string HexOf(const Sha256Digest& digest) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
}

Sha256Digest HashTokenIds(absl::Span<const int32_t> ids) {
  return Sha256(absl::string_view(reinterpret_cast<const char*>(ids.data()),
                                  ids.size() * sizeof(int32_t)));
}

std::vector<Sha256Digest> HashBlocks(const Sha256Digest& root,
                                     absl::Span<const int32_t> ids,
                                     int32_t block_tokens) {
  std::vector<Sha256Digest> out;
  Sha256Digest previous = root;
  const size_t step = static_cast<size_t>(block_tokens);
  for (size_t first = 0; first + step <= ids.size(); first += step) {
    std::string buffer = BytesOf(previous);
    buffer.append(reinterpret_cast<const char*>(ids.data() + first),
                  step * sizeof(int32_t));
    previous = Sha256(buffer);
    out.push_back(previous);
  }
  return out;
}

}  // namespace baton
