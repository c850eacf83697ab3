#include "common/checkpoint/json_file.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/mapped_file.h"

namespace baton::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMaxDepth = 64;
constexpr size_t kMaxJsonBytes = 100'000'000;

// Deepest nesting of brackets outside strings. Counted before parsing because
// the parser's own stack grows with the depth, 100 million brackets included.
int32_t NestingDepth(absl::string_view text) {
  int32_t depth = 0;
  int32_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
      if (deepest > kMaxDepth) return deepest;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<Json> ParseJsonStrict(absl::string_view text,
                                     absl::string_view what) {
  if (NestingDepth(text) > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": JSON nested deeper than ", kMaxDepth, " levels"));
  }
  // nlohmann-json keeps the last of two equal keys; we refuse instead.
  std::vector<absl::flat_hash_set<std::string>> keys;
  std::string duplicate;
  bool has_duplicate = false;
  const Json::parser_callback_t watch_keys =
      [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
        if (event == Json::parse_event_t::object_start) {
          keys.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
          keys.pop_back();
        } else if (event == Json::parse_event_t::key) {
          const std::string& key = parsed.get_ref<const std::string&>();
          if (!keys.back().insert(key).second && !has_duplicate) {
            has_duplicate = true;
            duplicate = key;
          }
        }
        return true;
      };
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), watch_keys);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": not valid JSON: ", error.what()));
  }
  if (has_duplicate) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": key '", duplicate, "' appears twice"));
  }
  return document;
}

absl::StatusOr<Json> ReadJsonFile(absl::string_view path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                   MappedFile::Open(path));
  if (file->bytes().size() > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", file->bytes().size(),
                     " bytes, expected at most ", kMaxJsonBytes));
  }
  return ParseJsonStrict(file->text(), path);
}

}  // namespace baton::checkpoint
