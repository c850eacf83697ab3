// The printable alphabet in which byte-level BPE files write bytes: the 188
// visible Latin-1 bytes stand for themselves, the other 68, in ascending order,
// are written U+0100, U+0101, ...
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// The bytes that `text` (UTF-8) writes; nothing if a character is outside the
// alphabet or the text is not valid UTF-8.
std::optional<std::string> BytesOfAlphabetText(absl::string_view text);

// The inverse.
std::string AlphabetTextOfBytes(absl::string_view bytes);

}  // namespace baton::tokenizer
