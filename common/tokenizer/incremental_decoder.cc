#include "common/tokenizer/incremental_decoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/utf8.h"

namespace baton::tokenizer {

absl::StatusOr<std::string> IncrementalDecoder::Append(int32_t id) {
  ASSIGN_OR_RETURN(const absl::string_view bytes, tokenizer_->TokenBytes(id));
  const std::vector<int32_t>& skip = options_.skip_ids;
  if (std::find(skip.begin(), skip.end(), id) != skip.end()) {
    return std::string();
  }
  return AppendBytes(bytes);
}

std::string IncrementalDecoder::AppendBytes(absl::string_view bytes) {
  absl::StrAppend(&held_, bytes);
  std::string out;
  absl::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    const size_t length = static_cast<size_t>(step.length);
    absl::StrAppend(&out, step.kind == Utf8Kind::kCharacter
                              ? rest.substr(0, length)
                              : absl::string_view(kReplacementCharacter));
    rest.remove_prefix(length);
  }
  held_ = std::string(rest);
  return out;
}

std::string IncrementalDecoder::Flush() {
  if (held_.empty()) return std::string();
  held_.clear();
  return kReplacementCharacter;
}

}  // namespace baton::tokenizer
