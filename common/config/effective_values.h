// The values that a process really runs with, defaults included, printed once
// at start as one structured log line.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::config {

// Not thread-safe.
class EffectiveValues final {
 public:
  // Values appear in the order of the calls. `name` is the flag without dashes.
  template <typename T>
  EffectiveValues& Add(absl::string_view name, const T& value) {
    AddText(name, absl::StrCat(value));
    return *this;
  }
  EffectiveValues& Add(absl::string_view name, bool value) {
    AddText(name, value ? "true" : "false");
    return *this;
  }

  // "name=value name=value"; values with blanks or quotes are quoted.
  const std::string& text() const { return text_; }

  // Event "effective_config" with the field `values`.
  void LogOnce() const;

 private:
  void AddText(absl::string_view name, absl::string_view value);

  std::string text_;
};

}  // namespace baton::config
