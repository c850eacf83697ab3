#include "common/tokenizer/utf8.h"

#include "absl/strings/str_cat.h"

namespace baton::tokenizer {
namespace {

// Continuation bytes wanted after a lead byte and the range of the first one
// (the later ones are always 80..BF).
struct Lead {
  int32_t continuations;  // -1: not a lead byte
  uint8_t low;
  uint8_t high;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte < 0xC2) return {-1, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(absl::string_view bytes) {
  const Lead lead = LeadOf(static_cast<uint8_t>(bytes[0]));
  if (lead.continuations < 0) return {Utf8Kind::kInvalid, 1};
  for (int32_t i = 1; i <= lead.continuations; ++i) {
    const size_t at = static_cast<size_t>(i);
    if (at >= bytes.size()) return {Utf8Kind::kIncomplete, i};
    const uint8_t byte = static_cast<uint8_t>(bytes[at]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.continuations + 1};
}

std::optional<int64_t> FirstInvalidUtf8(absl::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = NextUtf8(bytes.substr(at));
    if (step.kind != Utf8Kind::kCharacter) return static_cast<int64_t>(at);
    at += static_cast<size_t>(step.length);
  }
  return std::nullopt;
}

absl::Status CheckUtf8(absl::string_view bytes, absl::string_view what) {
  const std::optional<int64_t> at = FirstInvalidUtf8(bytes);
  if (!at.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " is not valid UTF-8 at byte ", *at, " (0x",
      absl::Hex(static_cast<uint8_t>(bytes[static_cast<size_t>(*at)]),
                absl::kZeroPad2),
      ") of ", bytes.size()));
}

std::string ToValidUtf8(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    const size_t length = static_cast<size_t>(step.length);
    if (step.kind == Utf8Kind::kCharacter) {
      out.append(bytes.data(), length);
    } else {
      out.append(kReplacementCharacter);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

}  // namespace baton::tokenizer
