#include "common/tokenizer/tokenizer_file.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_alphabet.h"

namespace baton::tokenizer {
namespace {

using Json = nlohmann::json;

// A table of this size is built from a file of at least that many entries'
// worth of ids; it bounds what a hostile id can make us allocate.
constexpr int64_t kMaxTokens = int64_t{1} << 22;
constexpr size_t kMaxStages = 16;

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", args...));
}

// Short text of a value for messages. Containers are not printed: they may be
// as large and as deep as the file.
std::string Show(const Json& value) {
  if (value.is_structured()) {
    return absl::StrCat(value.is_array() ? "a list" : "an object", " of ",
                        value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                Json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 60), "...");
  return text;
}

absl::Status CheckKeys(const Json& object, absl::string_view where,
                       std::initializer_list<absl::string_view> known) {
  if (!object.is_object()) {
    return Bad(where, " is ", Show(object), ", expected an object");
  }
  const absl::flat_hash_set<absl::string_view> names(known);
  for (const auto& [key, value] : object.items()) {
    if (!names.contains(absl::string_view(key))) {
      return Bad(where, " has the field '", key, "' = ", Show(value),
                 ", which this version does not know");
    }
  }
  return absl::OkStatus();
}

const Json& Field(const Json& object, const char* key) {
  static const Json* const kNull = new Json(nullptr);
  const auto it = object.find(key);
  return it == object.end() ? *kNull : *it;
}

// Absent or null means `fallback`.
absl::StatusOr<bool> BoolField(const Json& object, absl::string_view where,
                               const char* key, bool fallback) {
  const Json& value = Field(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    return Bad(where, ".", key, " is ", Show(value), ", expected a boolean");
  }
  return value.get<bool>();
}

absl::Status ExpectBool(const Json& object, absl::string_view where,
                        const char* key, bool expected, bool fallback) {
  ASSIGN_OR_RETURN(const bool value, BoolField(object, where, key, fallback));
  if (value != expected) {
    return Bad(where, ".", key, " = ", value ? "true" : "false",
               " is not supported, expected ", expected ? "true" : "false");
  }
  return absl::OkStatus();
}

absl::Status ExpectString(const Json& object, absl::string_view where,
                          const char* key, absl::string_view expected) {
  const Json& value = Field(object, key);
  if (!value.is_string() || value.get_ref<const std::string&>() != expected) {
    return Bad(where, ".", key, " = ", Show(value),
               " is not supported, expected \"", expected, "\"");
  }
  return absl::OkStatus();
}

absl::Status ExpectNull(const Json& object, absl::string_view where,
                        const char* key) {
  const Json& value = Field(object, key);
  if (!value.is_null()) {
    return Bad(where, ".", key, " = ", Show(value),
               " is not supported, expected null");
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> IdOf(const Json& value, absl::string_view where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() >= kMaxTokens) {
    return Bad(where, " has the id ", Show(value),
               ", expected an integer in 0..", kMaxTokens - 1);
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

absl::Status CheckNormalizer(const Json& root) {
  const Json& value = Field(root, "normalizer");
  if (value.is_null()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckKeys(value, "normalizer", {"type", "normalizers"}));
  RETURN_IF_ERROR(ExpectString(value, "normalizer", "type", "Sequence"));
  const Json& list = Field(value, "normalizers");
  if (!list.is_array() || !list.empty()) {
    return Bad("normalizer.normalizers = ", Show(list),
               " is not supported, expected an empty list");
  }
  return absl::OkStatus();
}

// ByteLevel as post-processor changes offsets only, which we do not report.
absl::Status CheckPostProcessor(const Json& root) {
  const Json& value = Field(root, "post_processor");
  if (value.is_null()) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckKeys(value, "post_processor",
                {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return ExpectString(value, "post_processor", "type", "ByteLevel");
}

// As a decoder, ByteLevel has no use for its three switches.
absl::Status CheckDecoder(const Json& root) {
  const Json& value = Field(root, "decoder");
  RETURN_IF_ERROR(
      CheckKeys(value, "decoder",
                {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return ExpectString(value, "decoder", "type", "ByteLevel");
}

absl::StatusOr<std::string> ReadSplit(const Json& stage,
                                      absl::string_view where) {
  RETURN_IF_ERROR(
      CheckKeys(stage, where, {"type", "pattern", "behavior", "invert"}));
  RETURN_IF_ERROR(ExpectString(stage, where, "behavior", "Isolated"));
  RETURN_IF_ERROR(ExpectBool(stage, where, "invert", false, false));
  const Json& pattern = Field(stage, "pattern");
  const std::string inner = absl::StrCat(where, ".pattern");
  RETURN_IF_ERROR(CheckKeys(pattern, inner, {"Regex"}));
  const Json& regex = Field(pattern, "Regex");
  if (!regex.is_string()) {
    return Bad(inner, ".Regex is ", Show(regex), ", expected a string");
  }
  return regex.get<std::string>();
}

absl::Status ReadPreTokenizer(const Json& root, TokenizerSpec* spec) {
  const Json& value = Field(root, "pre_tokenizer");
  RETURN_IF_ERROR(CheckKeys(value, "pre_tokenizer", {"type", "pretokenizers"}));
  RETURN_IF_ERROR(ExpectString(value, "pre_tokenizer", "type", "Sequence"));
  const Json& stages = Field(value, "pretokenizers");
  if (!stages.is_array() || stages.empty() || stages.size() > kMaxStages) {
    return Bad("pre_tokenizer.pretokenizers is ", Show(stages),
               ", expected a list of 1..", kMaxStages, " stages");
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const Json& stage = stages[i];
    const std::string where = absl::StrCat("pre_tokenizer stage ", i);
    if (i + 1 < stages.size()) {
      if (!stage.is_object()) return Bad(where, " is not an object");
      RETURN_IF_ERROR(ExpectString(stage, where, "type", "Split"));
      ASSIGN_OR_RETURN(std::string pattern, ReadSplit(stage, where));
      spec->split_patterns.push_back(std::move(pattern));
      continue;
    }
    RETURN_IF_ERROR(
        CheckKeys(stage, where,
                  {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    RETURN_IF_ERROR(ExpectString(stage, where, "type", "ByteLevel"));
    RETURN_IF_ERROR(ExpectBool(stage, where, "add_prefix_space", false, true));
    RETURN_IF_ERROR(ExpectBool(stage, where, "use_regex", false, true));
  }
  return absl::OkStatus();
}

absl::Status CheckModelSwitches(const Json& model) {
  RETURN_IF_ERROR(
      CheckKeys(model, "model",
                {"type", "dropout", "unk_token", "continuing_subword_prefix",
                 "end_of_word_suffix", "fuse_unk", "byte_fallback",
                 "ignore_merges", "vocab", "merges"}));
  RETURN_IF_ERROR(ExpectString(model, "model", "type", "BPE"));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix",
                          "end_of_word_suffix"}) {
    RETURN_IF_ERROR(ExpectNull(model, "model", key));
  }
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
    RETURN_IF_ERROR(ExpectBool(model, "model", key, false, false));
  }
  return absl::OkStatus();
}

// Ids by the text of the file (in the byte alphabet), while reading.
using VocabularyIds = absl::flat_hash_map<std::string, int32_t>;

absl::StatusOr<VocabularyIds> ReadVocabulary(const Json& model) {
  const Json& vocab = Field(model, "vocab");
  if (!vocab.is_object() || vocab.empty()) {
    return Bad("model.vocab is ", Show(vocab), ", expected a filled object");
  }
  VocabularyIds ids;
  ids.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    if (text.empty()) return Bad("model.vocab has an empty token");
    ASSIGN_OR_RETURN(
        const int32_t id,
        IdOf(value, absl::StrCat("model.vocab token '", text, "'")));
    ids.emplace(text, id);
  }
  return ids;
}

absl::Status Place(int32_t id, TokenEntry entry, TokenizerSpec* spec) {
  const size_t at = static_cast<size_t>(id);
  if (spec->tokens.size() <= at) spec->tokens.resize(at + 1);
  if (!spec->tokens[at].bytes.empty()) {
    return Bad("id ", id, " belongs to two tokens, '", spec->tokens[at].bytes,
               "' and '", entry.bytes, "'");
  }
  spec->tokens[at] = std::move(entry);
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& root, const VocabularyIds& ids,
                             TokenizerSpec* spec,
                             absl::flat_hash_set<std::string>* contents) {
  const Json& list = Field(root, "added_tokens");
  if (!list.is_array()) {
    return Bad("added_tokens is ", Show(list), ", expected a list");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& token = list[i];
    const std::string where = absl::StrCat("added token ", i);
    RETURN_IF_ERROR(CheckKeys(token, where,
                              {"id", "content", "single_word", "lstrip",
                               "rstrip", "normalized", "special"}));
    const Json& content = Field(token, "content");
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      return Bad(where, " has the content ", Show(content),
                 ", expected a filled string");
    }
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      RETURN_IF_ERROR(ExpectBool(token, where, key, false, false));
    }
    TokenEntry entry;
    entry.bytes = content.get<std::string>();
    entry.added = true;
    ASSIGN_OR_RETURN(entry.special, BoolField(token, where, "special", false));
    ASSIGN_OR_RETURN(entry.second_pass,
                     BoolField(token, where, "normalized", !entry.special));
    ASSIGN_OR_RETURN(const int32_t id, IdOf(Field(token, "id"), where));
    const auto in_vocabulary = ids.find(entry.bytes);
    if (in_vocabulary != ids.end() && in_vocabulary->second != id) {
      return Bad(where, " '", entry.bytes, "' has the id ", id,
                 ", but model.vocab gives it ", in_vocabulary->second);
    }
    if (!contents->insert(entry.bytes).second) {
      return Bad(where, " '", entry.bytes, "' is listed twice");
    }
    RETURN_IF_ERROR(Place(id, std::move(entry), spec));
  }
  return absl::OkStatus();
}

absl::Status PlaceVocabulary(const VocabularyIds& ids,
                             const absl::flat_hash_set<std::string>& added,
                             TokenizerSpec* spec) {
  spec->byte_ids.fill(-1);
  for (const auto& [text, id] : ids) {
    if (added.contains(text)) continue;
    std::optional<std::string> bytes = BytesOfAlphabetText(text);
    if (!bytes.has_value()) {
      return Bad("model.vocab token '", text,
                 "' has a character outside the byte-level alphabet");
    }
    if (bytes->size() == 1) {
      spec->byte_ids[static_cast<uint8_t>((*bytes)[0])] = id;
    }
    RETURN_IF_ERROR(Place(id, TokenEntry{.bytes = *std::move(bytes)}, spec));
  }
  for (size_t byte = 0; byte < spec->byte_ids.size(); ++byte) {
    if (spec->byte_ids[byte] < 0) {
      return Bad("model.vocab has no token for the byte ", byte,
                 "; expected all 256 (there is no unknown token)");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(const Json& value,
                                                              size_t rank) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && space > 0 && space + 1 < text.size() &&
        text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  } else if (value.is_array() && value.size() == 2 && value[0].is_string() &&
             value[1].is_string()) {
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  }
  return Bad("model.merges ", rank, " is ", Show(value),
             ", expected \"left right\" or [\"left\", \"right\"]");
}

absl::Status ReadMerges(const Json& model, const VocabularyIds& ids,
                        TokenizerSpec* spec) {
  const Json& merges = Field(model, "merges");
  if (!merges.is_array()) {
    return Bad("model.merges is ", Show(merges), ", expected a list");
  }
  absl::flat_hash_set<std::pair<int32_t, int32_t>> seen;
  seen.reserve(merges.size());
  spec->merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    ASSIGN_OR_RETURN(const auto texts, ReadMerge(merges[rank], rank));
    BpeMerger::Merge merge;
    for (const auto& [text, id] :
         {std::pair<std::string, int32_t*>(texts.first, &merge.left),
          std::pair<std::string, int32_t*>(texts.second, &merge.right),
          std::pair<std::string, int32_t*>(texts.first + texts.second,
                                           &merge.merged)}) {
      const auto it = ids.find(text);
      if (it == ids.end()) {
        return Bad("model.merges ", rank, " needs '", text,
                   "', which is not in model.vocab");
      }
      *id = it->second;
    }
    // Else ordinary text could turn into a control token.
    if (spec->tokens[static_cast<size_t>(merge.merged)].added) {
      return Bad("model.merges ", rank, " makes the added token '",
                 texts.first + texts.second, "'");
    }
    if (!seen.emplace(merge.left, merge.right).second) {
      return Bad("model.merges ", rank, " repeats an earlier pair");
    }
    spec->merges.push_back(merge);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(absl::string_view json) {
  const Json root = Json::parse(json.begin(), json.end(), /*cb=*/nullptr,
                                /*allow_exceptions=*/false);
  if (root.is_discarded()) return Bad("not valid JSON");
  RETURN_IF_ERROR(CheckKeys(
      root, "the file",
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  RETURN_IF_ERROR(ExpectString(root, "the file", "version", "1.0"));
  RETURN_IF_ERROR(ExpectNull(root, "the file", "truncation"));
  RETURN_IF_ERROR(ExpectNull(root, "the file", "padding"));
  RETURN_IF_ERROR(CheckNormalizer(root));
  RETURN_IF_ERROR(CheckPostProcessor(root));
  RETURN_IF_ERROR(CheckDecoder(root));
  TokenizerSpec spec;
  RETURN_IF_ERROR(ReadPreTokenizer(root, &spec));
  const Json& model = Field(root, "model");
  RETURN_IF_ERROR(CheckModelSwitches(model));
  ASSIGN_OR_RETURN(const VocabularyIds ids, ReadVocabulary(model));
  absl::flat_hash_set<std::string> added;
  RETURN_IF_ERROR(ReadAddedTokens(root, ids, &spec, &added));
  RETURN_IF_ERROR(PlaceVocabulary(ids, added, &spec));
  RETURN_IF_ERROR(ReadMerges(model, ids, &spec));
  return spec;
}

}  // namespace baton::tokenizer
