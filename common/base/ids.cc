#include "common/base/ids.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton {

std::string Id128ToHex(uint64_t hi, uint64_t lo) {
  return absl::StrFormat("%016x%016x", hi, lo);
}

std::string Id128ToBytes(uint64_t hi, uint64_t lo) {
  std::string out(16, '\0');
  for (int i = 0; i < 8; ++i) {
    out[static_cast<size_t>(i)] = static_cast<char>(hi >> (56 - 8 * i));
    out[static_cast<size_t>(8 + i)] = static_cast<char>(lo >> (56 - 8 * i));
  }
  return out;
}

absl::StatusOr<std::pair<uint64_t, uint64_t>> Id128FromBytes(
    absl::string_view bytes) {
  if (bytes.size() != 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("id of ", bytes.size(), " bytes, expected exactly 16"));
  }
  uint64_t hi = 0;
  uint64_t lo = 0;
  for (size_t i = 0; i < 8; ++i) {
    hi = hi << 8 | static_cast<uint8_t>(bytes[i]);
    lo = lo << 8 | static_cast<uint8_t>(bytes[8 + i]);
  }
  return std::make_pair(hi, lo);
}

}  // namespace baton
