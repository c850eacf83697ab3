// Where tests find the repository's data and the built binaries.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace baton::testing {

// Absolute path of `relative` below the source tree (set by CTest; the current
// folder otherwise).
inline std::string SourcePath(absl::string_view relative) {
  const char* const root = std::getenv("BATON_SOURCE_DIR");
  return absl::StrCat(root == nullptr ? "." : root, "/", relative);
}

inline std::string BinaryPath(absl::string_view name) {
  const char* const root = std::getenv("BATON_BINARY_DIR");
  return absl::StrCat(root == nullptr ? "build/test" : root, "/bin/", name);
}

}  // namespace baton::testing
