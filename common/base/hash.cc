#include "common/base/hash.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <bit>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace baton {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as little-endian int32");

Sha256Digest Sha256(absl::string_view bytes) {
  Sha256Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         out.data());
  return out;
}

struct Sha256Hasher::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256Hasher::Sha256Hasher() : context_(std::make_unique<Context>()) {
  CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}

Sha256Hasher::~Sha256Hasher() = default;

void Sha256Hasher::Update(absl::string_view bytes) {
  CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256Hasher::Finish() {
  Sha256Digest out;
  CHECK(EVP_DigestFinal_ex(context_->md, out.data(), nullptr) == 1);
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
