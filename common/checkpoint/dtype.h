// Element types of safetensors files.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace baton::checkpoint {

enum class DType : uint8_t {
  kI8,
  kU8,
  kF8E4M3,
  kF8E8M0,
  kBf16,
  kF16,
  kF32,
  kI32,
  kI64,
};
inline constexpr int32_t kNumDTypes = 9;

// Bytes of one element: 1, 2, 4 or 8.
int64_t DTypeBytes(DType dtype);
// The name used in safetensors headers, e.g. "F8_E4M3".
absl::string_view DTypeName(DType dtype);
// Nothing for a name that no checkpoint of this family uses.
std::optional<DType> ParseDType(absl::string_view name);

}  // namespace baton::checkpoint
