// Reads tokenizer.json of the Hugging Face `tokenizers` library into plain
// data. The file is untrusted: every field is checked, and a feature that this
// room does not have is refused by name instead of being ignored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/bpe.h"

namespace baton::tokenizer {

// One entry of the vocabulary.
struct TokenEntry {
  std::string bytes;     // what the token stands for; empty: the id is unused
  bool added = false;    // matched literally in text before BPE
  bool special = false;  // BOS, EOS and the like: may be skipped in output
  // Added tokens come in two passes over the text: those with "normalized":
  // false cut it first.
  bool second_pass = false;
};

struct TokenizerSpec {
  std::vector<TokenEntry> tokens;  // by id
  std::array<int32_t, 256> byte_ids{};
  std::vector<BpeMerger::Merge> merges;     // by rank
  std::vector<std::string> split_patterns;  // stages, in order
};

// InvalidArgument names the field and what was expected.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(absl::string_view json);

}  // namespace baton::tokenizer
