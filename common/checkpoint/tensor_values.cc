#include "common/checkpoint/tensor_values.h"

#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::checkpoint {
namespace {

absl::Status BadValue(const TensorView& tensor, size_t index,
                      absl::string_view found, absl::string_view expected) {
  return absl::DataLossError(absl::StrCat(
      "tensor '", tensor.name, "' (", Describe(tensor.dtype, tensor.shape),
      "): value ", index, " is ", found, ", expected ", expected));
}

// Index of the first value that `bad` accepts, or the size. Blocks are first
// scanned without an exit, so that the compiler can vectorise the common case.
template <typename T, typename Bad>
size_t FindBad(absl::Span<const T> values, Bad bad) {
  constexpr size_t kBlock = 4096;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const absl::Span<const T> block = values.subspan(first, kBlock);
    bool any = false;
    for (const T value : block) any |= bad(value);
    if (!any) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (bad(block[i])) return first + i;
    }
  }
  return values.size();
}

std::string HexByte(uint8_t byte) {
  return absl::StrCat("code 0x", absl::Hex(byte, absl::kZeroPad2));
}

}  // namespace

absl::Status CheckFinite(const TensorView& tensor) {
  constexpr absl::string_view kExpected = "a finite number";
  switch (tensor.dtype) {
    case DType::kF32: {
      const auto values = tensor.As<uint32_t>();
      const size_t at = FindBad(values, [](uint32_t bits) {
        return (bits & 0x7f800000u) == 0x7f800000u;
      });
      if (at == values.size()) return absl::OkStatus();
      return BadValue(tensor, at,
                      absl::StrCat(std::bit_cast<float>(values[at])),
                      kExpected);
    }
    case DType::kBf16: {
      const auto values = tensor.As<uint16_t>();
      const size_t at = FindBad(
          values, [](uint16_t bits) { return (bits & 0x7f80) == 0x7f80; });
      if (at == values.size()) return absl::OkStatus();
      const float value =
          std::bit_cast<float>(static_cast<uint32_t>(values[at]) << 16);
      return BadValue(tensor, at, absl::StrCat(value), kExpected);
    }
    case DType::kF8E4M3: {
      const auto values = tensor.As<uint8_t>();
      const size_t at =
          FindBad(values, [](uint8_t bits) { return (bits & 0x7f) == 0x7f; });
      if (at == values.size()) return absl::OkStatus();
      return BadValue(tensor, at,
                      absl::StrCat("NaN (", HexByte(values[at]), ")"),
                      kExpected);
    }
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckScales(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF8E8M0: {
      const auto values = tensor.As<uint8_t>();
      const size_t at =
          FindBad(values, [](uint8_t byte) { return byte == 0xff; });
      if (at == values.size()) return absl::OkStatus();
      return BadValue(tensor, at, "NaN (code 0xff)", "a power of two");
    }
    case DType::kF8E4M3: {
      const auto values = tensor.As<uint8_t>();
      // 0x01..0x7e are the positive finite codes.
      const size_t at = FindBad(values, [](uint8_t byte) {
        return static_cast<uint8_t>(byte - 1) >= 0x7e;
      });
      if (at == values.size()) return absl::OkStatus();
      return BadValue(tensor, at, HexByte(values[at]),
                      "a positive finite E4M3 scale");
    }
    case DType::kF32: {
      const auto values = tensor.As<float>();
      const size_t at = FindBad(values, [](float value) {
        return !(value > 0.0f) || std::isinf(value);
      });
      if (at == values.size()) return absl::OkStatus();
      return BadValue(tensor, at, absl::StrCat(values[at]),
                      "a finite scale > 0");
    }
    default:
      CHECK(false) << "no scale dtype: " << DTypeName(tensor.dtype);
      return absl::OkStatus();
  }
}

absl::Status CheckIndices(const TensorView& tensor, int64_t limit) {
  CHECK(tensor.dtype == DType::kI64) << tensor.name;
  const auto values = tensor.As<int64_t>();
  const size_t at = FindBad(
      values, [limit](int64_t value) { return value < 0 || value >= limit; });
  if (at == values.size()) return absl::OkStatus();
  return BadValue(tensor, at, absl::StrCat(values[at]),
                  absl::StrCat("an index in [0, ", limit, ")"));
}

bool IsPowerOfTwo(float value) {
  int exponent = 0;
  return std::isfinite(value) && std::frexp(value, &exponent) == 0.5f;
}

}  // namespace baton::checkpoint
