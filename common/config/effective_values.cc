#include "common/config/effective_values.h"

#include "absl/strings/escaping.h"
#include "common/base/log.h"

namespace baton::config {

void EffectiveValues::AddText(absl::string_view name, absl::string_view value) {
  bool plain = !value.empty();
  for (const char c : value) {
    if (c <= ' ' || c == '\'' || c == 0x7f) plain = false;
  }
  absl::StrAppend(&text_, text_.empty() ? "" : " ", name, "=");
  if (plain) {
    absl::StrAppend(&text_, value);
  } else {
    absl::StrAppend(&text_, "'", absl::CEscape(value), "'");
  }
}

void EffectiveValues::LogOnce() const {
  LogInfo("effective_config", {{"values", text_}});
}

}  // namespace baton::config
