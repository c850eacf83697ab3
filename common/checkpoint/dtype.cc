#include "common/checkpoint/dtype.h"

#include <array>
#include <cstddef>

namespace baton::checkpoint {
namespace {

struct Entry {
  absl::string_view name;
  int64_t bytes;
};

// Indexed by DType.
constexpr std::array<Entry, kNumDTypes> kEntries = {{
    {"I8", 1},
    {"U8", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"BF16", 2},
    {"F16", 2},
    {"F32", 4},
    {"I32", 4},
    {"I64", 8},
}};

}  // namespace

int64_t DTypeBytes(DType dtype) {
  return kEntries[static_cast<size_t>(dtype)].bytes;
}

absl::string_view DTypeName(DType dtype) {
  return kEntries[static_cast<size_t>(dtype)].name;
}

std::optional<DType> ParseDType(absl::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace baton::checkpoint
