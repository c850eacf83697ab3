#include "common/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace baton::tokenizer {
namespace {

constexpr bool IsVisible(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         byte >= 0xAE;
}

struct Alphabet {
  std::array<int16_t, 256> code_point{};  // of a byte
  std::array<int16_t, 324> byte{};        // of a code point, -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = IsVisible(byte) ? byte : next++;
    alphabet.code_point[static_cast<size_t>(byte)] =
        static_cast<int16_t>(code_point);
    alphabet.byte[static_cast<size_t>(code_point)] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<std::string> BytesOfAlphabetText(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t code_point = static_cast<uint8_t>(text[i]);
    if (code_point >= 0x80) {
      // The alphabet ends below U+0144: two-byte characters only.
      if (code_point < 0xC2 || code_point > 0xDF || i + 1 >= text.size()) {
        return std::nullopt;
      }
      const uint32_t low = static_cast<uint8_t>(text[++i]);
      if ((low & 0xC0) != 0x80) return std::nullopt;
      code_point = ((code_point & 0x1F) << 6) | (low & 0x3F);
    }
    if (code_point >= kAlphabet.byte.size() || kAlphabet.byte[code_point] < 0) {
      return std::nullopt;
    }
    out.push_back(static_cast<char>(kAlphabet.byte[code_point]));
  }
  return out;
}

std::string AlphabetTextOfBytes(absl::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const int code_point = kAlphabet.code_point[static_cast<uint8_t>(c)];
    if (code_point < 0x80) {
      out.push_back(static_cast<char>(code_point));
    } else {
      out.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
      out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
  return out;
}

}  // namespace baton::tokenizer
