// UTF-8 as Unicode 15 table 3-7 defines it: no surrogates, no overlong forms,
// nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// What stands at the start of a byte string.
enum class Utf8Kind {
  kCharacter,   // one well-formed character of `length` bytes
  kInvalid,     // `length` bytes that no continuation can make well-formed: the
                // "maximal subpart", which a decoder replaces by one U+FFFD
  kIncomplete,  // all remaining `length` bytes are a proper prefix of a
                // character
};

struct Utf8Step {
  Utf8Kind kind;
  int32_t length;  // bytes, 1..4
};

// `bytes` must not be empty.
Utf8Step NextUtf8(absl::string_view bytes);

// Offset of the first byte that is not part of a well-formed character (an
// incomplete character at the end counts), or nothing.
std::optional<int64_t> FirstInvalidUtf8(absl::string_view bytes);

// InvalidArgument that names `what` and the byte offset.
absl::Status CheckUtf8(absl::string_view bytes, absl::string_view what);

// Every maximal subpart replaced by U+FFFD.
std::string ToValidUtf8(absl::string_view bytes);

// U+FFFD.
inline constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";

}  // namespace baton::tokenizer
