#include "decode_worker/output/output_vocabulary.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace baton::decode_worker {
namespace {

// DeepSeek's names; the bars are U+FF5C and the low lines U+2581.
constexpr const char* kSilentTokens[] = {
    "<\xEF\xBD\x9C"
    "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    "<\xEF\xBD\x9C\xE2\x96\x81pad\xE2\x96\x81\xEF\xBD\x9C>",
};

}  // namespace

OutputVocabulary::OutputVocabulary(const tokenizer::Tokenizer* tokenizer,
                                   std::vector<int32_t> end_ids)
    : tokenizer_(tokenizer), silent_ids_(std::move(end_ids)) {
  if (tokenizer_ == nullptr) return;
  for (const char* const name : kSilentTokens) {
    const std::optional<int32_t> id = tokenizer_->IdOf(name);
    if (id.has_value()) silent_ids_.push_back(*id);
  }
}

absl::string_view OutputVocabulary::TextBytes(int32_t id) const {
  const bool silent = std::find(silent_ids_.begin(), silent_ids_.end(), id) !=
                      silent_ids_.end();
  return silent ? absl::string_view() : TokenBytes(id);
}

absl::string_view OutputVocabulary::TokenBytes(int32_t id) const {
  if (tokenizer_ == nullptr) return {};
  const absl::StatusOr<absl::string_view> bytes = tokenizer_->TokenBytes(id);
  return bytes.ok() ? *bytes : absl::string_view();
}

}  // namespace baton::decode_worker
