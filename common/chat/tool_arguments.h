// Arguments of a tool call as the DSML parameters of a prompt (model.md 8.2).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::chat {

struct ToolParameter {
  std::string name;
  bool is_string = false;
  std::string value;  // the raw string, or JSON with ", " and ": " separators
};

// The members of the JSON object `arguments` in their order (the last of equal
// keys, at the place of the first). Text that is not a JSON object becomes one
// string parameter called "arguments". JSON is written as Python's
// json.dumps(ensure_ascii=False) writes it, numbers of any length included.
// InvalidArgument if it is nested deeper than 100.
absl::StatusOr<std::vector<ToolParameter>> ToolParameters(
    absl::string_view arguments);

}  // namespace baton::chat
