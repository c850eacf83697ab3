// One "Split" stage of the pre-tokenizer: a regular expression of
// tokenizer.json (written for Oniguruma), compiled with PCRE2 (UTF, UCP, JIT).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Rewrites an Oniguruma pattern so that PCRE2 means the same by it. \s and \S
// become the Unicode White_Space set (PCRE2 would add U+180E). Constructs whose
// meaning differs between the two, or that are not known to agree, are refused
// by name with InvalidArgument.
absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern);

// Scratch memory of matching; one per thread and call chain.
class MatchScratch final {
 public:
  MatchScratch();
  ~MatchScratch();
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

 private:
  friend class SplitPattern;
  void* data_;
};

// Thread-safe after Create.
class SplitPattern final {
 public:
  // InvalidArgument if the pattern is refused, does not compile, or can match
  // the empty string.
  static absl::StatusOr<std::unique_ptr<SplitPattern>> Create(
      absl::string_view pattern);
  ~SplitPattern();

  // Cuts `text` (valid UTF-8) into matches and the gaps between them, in order,
  // and calls `piece` for each; behaviour "Isolated". Look-around sees `text`
  // only, as each piece of the previous stage is a string of its own.
  absl::Status Split(
      absl::string_view text, MatchScratch* scratch,
      const std::function<absl::Status(absl::string_view)>& piece) const;

  const std::string& pattern() const { return pattern_; }

 private:
  SplitPattern(std::string pattern, void* code)
      : pattern_(std::move(pattern)), code_(code) {}

  std::string pattern_;  // as in the file
  void* code_;           // pcre2_code
};

}  // namespace baton::tokenizer
