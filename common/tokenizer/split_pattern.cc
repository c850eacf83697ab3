#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/tokenizer/split_pattern.h"

#include <pcre2.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::tokenizer {
namespace {

// Unicode White_Space (model.md 8.1).
constexpr char kWhiteSpace[] =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
    "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

absl::Status Refuse(absl::string_view pattern, absl::string_view construct) {
  return absl::InvalidArgumentError(
      absl::StrCat("pre-tokenizer pattern '", pattern, "': ", construct,
                   " is not supported (its meaning is not the same in "
                   "Oniguruma and PCRE2)"));
}

std::string PcreMessage(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  if (pcre2_get_error_message(code, text.data(), text.size()) < 0) {
    return absl::StrCat("PCRE2 error ", code);
  }
  return reinterpret_cast<const char*>(text.data());
}

bool KnownGroup(absl::string_view rest) {
  // What may follow "(?".
  for (absl::string_view known : {":", "=", "!", "<=", "<!", ">", "i:"}) {
    if (rest.substr(0, known.size()) == known) return true;
  }
  return false;
}

class Translator final {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      if (Peek(0) == '\\') {
        RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(InClass());
      } else {
        RETURN_IF_ERROR(Outside());
      }
    }
    return std::move(out_);
  }

 private:
  char Peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void Copy(size_t n) {
    absl::StrAppend(&out_, pattern_.substr(at_, n));
    at_ += n;
  }

  absl::Status Escape() {
    if (at_ + 1 >= pattern_.size()) {
      return Refuse(pattern_, "a backslash at the end");
    }
    const char c = Peek(1);
    if (c == 's') {
      absl::StrAppend(&out_, in_class_ ? "" : "[", kWhiteSpace,
                      in_class_ ? "" : "]");
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'S') {
      if (in_class_) return Refuse(pattern_, "\\S inside a class");
      absl::StrAppend(&out_, "[^", kWhiteSpace, "]");
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') {
      const size_t close = pattern_.find('}', at_);
      if (Peek(2) != '{' || close == absl::string_view::npos) {
        return Refuse(pattern_, "\\p without braces");
      }
      Copy(close + 1 - at_);
      return absl::OkStatus();
    }
    if (c == 'r' || c == 'n' || c == 't' || c == 'd' ||
        absl::ascii_ispunct(static_cast<unsigned char>(c))) {
      Copy(2);
      return absl::OkStatus();
    }
    return Refuse(pattern_, absl::StrCat("escape \\", std::string(1, c)));
  }

  absl::Status InClass() {
    const char c = Peek(0);
    if (c == '[') return Refuse(pattern_, "'[' inside a class");
    if (c == '&' && Peek(1) == '&') {
      return Refuse(pattern_, "'&&' inside a class");
    }
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Outside() {
    const char c = Peek(0);
    if (c == '^' || c == '$') {
      return Refuse(pattern_, absl::StrCat("anchor ", std::string(1, c)));
    }
    if (c == '{' && Peek(1) == ',') return Refuse(pattern_, "'{,'");
    if (c == '(' && Peek(1) == '*') return Refuse(pattern_, "'(*'");
    if (c == '(' && Peek(1) == '?' && !KnownGroup(pattern_.substr(at_ + 2))) {
      return Refuse(pattern_,
                    absl::StrCat("group '", pattern_.substr(at_, 4), "'"));
    }
    if (c == '[') {
      in_class_ = true;
      Copy(Peek(1) == '^' ? 2 : 1);
      if (Peek(0) == ']') return Refuse(pattern_, "']' first in a class");
      return absl::OkStatus();
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

const pcre2_code* CodeOf(const void* code) {
  return static_cast<const pcre2_code*>(code);
}

}  // namespace

absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern) {
  return Translator(pattern).Run();
}

MatchScratch::MatchScratch()
    : data_(pcre2_match_data_create(/*ovecsize=*/1, nullptr)) {
  CHECK(data_ != nullptr);
}

MatchScratch::~MatchScratch() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(data_));
}

absl::StatusOr<std::unique_ptr<SplitPattern>> SplitPattern::Create(
    absl::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_at,
      nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("pre-tokenizer pattern '", pattern,
                     "' does not compile: ", PcreMessage(error)));
  }
  std::unique_ptr<SplitPattern> out(
      new SplitPattern(std::string(pattern), code));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pre-tokenizer pattern '", pattern,
                     "' can match the empty string; expected one that cannot"));
  }
  // Without JIT on this machine, pcre2_match interprets: slower, same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return out;
}

SplitPattern::~SplitPattern() {
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

absl::Status SplitPattern::Split(
    absl::string_view text, MatchScratch* scratch,
    const std::function<absl::Status(absl::string_view)>& piece) const {
  pcre2_match_data* const data = static_cast<pcre2_match_data*>(scratch->data_);
  const PCRE2_SPTR subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    int rc = pcre2_match(CodeOf(code_), subject, text.size(), at,
                         PCRE2_NO_UTF_CHECK, data, nullptr);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its backtracking on the heap.
      rc = pcre2_match(CodeOf(code_), subject, text.size(), at,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pre-tokenizer pattern '", pattern_, "' gave up on ",
                       text.size(), " bytes: ", PcreMessage(rc)));
    }
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data);
    const size_t begin = range[0];
    const size_t end = range[1];
    CHECK(begin >= at && end > begin && end <= text.size());
    if (begin > at) RETURN_IF_ERROR(piece(text.substr(at, begin - at)));
    RETURN_IF_ERROR(piece(text.substr(begin, end - begin)));
    at = end;
  }
  if (at < text.size()) RETURN_IF_ERROR(piece(text.substr(at)));
  return absl::OkStatus();
}

}  // namespace baton::tokenizer
