// Number formats of the checkpoint and of the cache, both directions.
//
// Rules (model.md 3.7): round to nearest even everywhere; E4M3 ("fn": no
// infinity, code 0x7F/0xFF is NaN) and E2M1 saturate; E8M0 is 2^(byte - 127)
// and byte 255 is NaN. All functions are pure and bit-exact on every machine.
// Tests: kernels_numeric_test (every code, every rounding boundary).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace baton::kernels {

// bf16 ----------------------------------------------------------------------

constexpr float F32FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
constexpr uint16_t Bf16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  }
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7FFFu + odd) >> 16);
}

// The value rounded to bf16 and widened again.
constexpr float RoundToBf16(float value) {
  return F32FromBf16(Bf16FromF32(value));
}

// Powers of two
// ----------------------------------------------------------------

// 2^exponent for exponent in [-149, 127], exact.
constexpr float Pow2(int32_t exponent) {
  if (exponent < -126) {
    return std::bit_cast<float>(uint32_t{1} << (exponent + 149));
  }
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// Exponent of the smallest power of two >= value, for a normal value > 0
// (model.md 4): an exact power of two is kept.
constexpr int32_t Pow2CeilExponent(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int32_t exponent = static_cast<int32_t>((bits >> 23) & 0xFFu) - 127;
  return exponent + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}
constexpr float Pow2Ceil(float value) { return Pow2(Pow2CeilExponent(value)); }

// E8M0
// -------------------------------------------------------------------------

constexpr float F32FromE8m0(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN()
                     : Pow2(static_cast<int32_t>(code) - 127);
}

// Code of a power of two with exponent in [-127, 127].
constexpr uint8_t E8m0FromExponent(int32_t exponent) {
  return static_cast<uint8_t>(exponent + 127);
}

// E4M3
// -------------------------------------------------------------------------

inline constexpr float kE4m3Max = 448.0f;

constexpr float F32FromE4m3(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15u;
  const uint32_t mantissa = code & 7u;
  const float sign = (code & 0x80u) != 0 ? -1.0f : 1.0f;
  if (exponent == 15u && mantissa == 7u) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * static_cast<float>(mantissa) * Pow2(-9);
  }
  return sign * static_cast<float>(8u + mantissa) *
         Pow2(static_cast<int32_t>(exponent) - 10);
}

// Nearest even, saturating at +-448; infinity saturates, NaN becomes 0x7F.
constexpr uint8_t E4m3FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint8_t>(sign | 0x7Fu);
  }
  const float v = std::bit_cast<float>(magnitude);
  if (v >= kE4m3Max) {
    return static_cast<uint8_t>(sign | 0x7Eu);
  }
  if (v < Pow2(-6)) {
    // Subnormal: a multiple of 2^-9. Adding 2^14 leaves exactly the multiples
    // of 2^-9 (ulp of [2^14, 2^15) is 2^-9), rounded to nearest even.
    const float rounded = (v + 16384.0f) - 16384.0f;
    return static_cast<uint8_t>(
        sign | static_cast<uint32_t>(rounded * 512.0f));  // 8 = 2^-6
  }
  // Round the 23-bit mantissa to 3 bits; a carry moves the exponent.
  const uint32_t odd = (magnitude >> 20) & 1u;
  const uint32_t rounded = (magnitude + 0x7FFFFu + odd) >> 20;
  const uint32_t code = rounded - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

// E2M1
// -------------------------------------------------------------------------

inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kE2m1Values[16] = {
    0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// `code` is a nibble, 0..15.
constexpr float F32FromE2m1(uint8_t code) { return kE2m1Values[code & 15u]; }

// Nearest, ties to the code with even mantissa, saturating at +-6; NaN
// becomes +-6 (the format has no NaN).
constexpr uint8_t E2m1FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 28) & 8u);
  const float v = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  uint8_t code = 7;
  if (v <= 0.25f) {
    code = 0;
  } else if (v < 0.75f) {
    code = 1;
  } else if (v <= 1.25f) {
    code = 2;
  } else if (v < 1.75f) {
    code = 3;
  } else if (v <= 2.5f) {
    code = 4;
  } else if (v < 3.5f) {
    code = 5;
  } else if (v <= 5.0f) {
    code = 6;
  }
  return static_cast<uint8_t>(sign | code);
}

// Element k of a packed FP4 row: the low nibble is the lower index.
constexpr uint8_t E2m1Nibble(const uint8_t* packed, int64_t k) {
  const uint8_t byte = packed[k / 2];
  return (k % 2 == 0) ? static_cast<uint8_t>(byte & 15u)
                      : static_cast<uint8_t>(byte >> 4);
}

}  // namespace baton::kernels
