// Strict JSON: what a hostile or damaged file could use to confuse or exhaust
// us is refused before a document is built.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::checkpoint {

// Parses `text`. InvalidArgument, starting with `what`, for anything that is
// not one JSON document in UTF-8, for a key given twice in one object, and for
// nesting deeper than 64.
absl::StatusOr<nlohmann::json> ParseJsonStrict(absl::string_view text,
                                               absl::string_view what);

// Reads and parses a file of at most 100 MB.
absl::StatusOr<nlohmann::json> ReadJsonFile(absl::string_view path);

}  // namespace baton::checkpoint
