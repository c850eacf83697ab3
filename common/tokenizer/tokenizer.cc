#include "common/tokenizer/tokenizer.h"

#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/utf8.h"

namespace baton::tokenizer {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

void AppendUint32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>((value >> shift) & 0xFF));
  }
}

void AppendText(absl::string_view text, std::string* out) {
  AppendUint32(static_cast<uint32_t>(text.size()), out);
  absl::StrAppend(out, text);
}

// Canonical serialisation: every list and string with its length in front.
Sha256Digest HashOf(const TokenizerSpec& spec) {
  std::string bytes;
  AppendUint32(static_cast<uint32_t>(spec.tokens.size()), &bytes);
  for (const TokenEntry& token : spec.tokens) {
    AppendText(token.bytes, &bytes);
    bytes.push_back(static_cast<char>((token.added ? 1 : 0) |
                                      (token.special ? 2 : 0) |
                                      (token.second_pass ? 4 : 0)));
  }
  AppendUint32(static_cast<uint32_t>(spec.merges.size()), &bytes);
  for (const BpeMerger::Merge& merge : spec.merges) {
    AppendUint32(static_cast<uint32_t>(merge.left), &bytes);
    AppendUint32(static_cast<uint32_t>(merge.right), &bytes);
    AppendUint32(static_cast<uint32_t>(merge.merged), &bytes);
  }
  AppendUint32(static_cast<uint32_t>(spec.split_patterns.size()), &bytes);
  for (const std::string& pattern : spec.split_patterns) {
    AppendText(pattern, &bytes);
  }
  return Sha256(bytes);
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, FileCloser> file(
      std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open ", path));
  }
  std::string text;
  std::vector<char> buffer(size_t{1} << 16);
  for (;;) {
    const size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get());
    if (n == 0) break;
    text.append(buffer.data(), n);
    if (text.size() > kMaxFileBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          path, " is larger than the limit of ", kMaxFileBytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::DataLossError(absl::StrCat("cannot read ", path));
  }
  return text;
}

}  // namespace

struct Tokenizer::Encoding {
  MatchScratch scratch;
  std::vector<int32_t> ids;
};

Tokenizer::Tokenizer(TokenizerSpec spec)
    : spec_(std::move(spec)), merger_(spec_.byte_ids, spec_.merges) {
  ids_.reserve(spec_.tokens.size());
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const TokenEntry& token = spec_.tokens[static_cast<size_t>(id)];
    if (token.bytes.empty()) continue;
    if (token.added) {
      (token.second_pass ? second_added_ : first_added_)
          .Insert(token.bytes, id);
      ids_[token.bytes] = id;
    } else {
      ids_.emplace(token.bytes, id);
    }
  }
  vocabulary_hash_ = HashOf(spec_);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(
    absl::string_view json) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json));
  std::vector<std::unique_ptr<SplitPattern>> stages;
  for (const std::string& pattern : spec.split_patterns) {
    ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> stage,
                     SplitPattern::Create(pattern));
    stages.push_back(std::move(stage));
  }
  std::unique_ptr<Tokenizer> out(new Tokenizer(std::move(spec)));
  out->stages_ = std::move(stages);
  return out;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromFile(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<std::unique_ptr<Tokenizer>> out = Create(text);
  if (!out.ok()) return Annotate(out.status(), path);
  return out;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(
    absl::string_view text, AddedTokens added) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, at most ",
                     std::numeric_limits<int32_t>::max(), " can be encoded"));
  }
  RETURN_IF_ERROR(CheckUtf8(text, "text"));
  Encoding out;
  if (added == AddedTokens::kMatch) {
    RETURN_IF_ERROR(EncodeAdded(text, &first_added_, &second_added_, &out));
  } else {
    RETURN_IF_ERROR(EncodeStage(text, 0, &out));
  }
  return std::move(out.ids);
}

// Cuts `text` at the literals of `first` (leftmost, then longest) and hands the
// gaps to `second`, or to the split stages if there is none.
absl::Status Tokenizer::EncodeAdded(absl::string_view text,
                                    const ByteTrie* first,
                                    const ByteTrie* second,
                                    Encoding* out) const {
  const auto gap = [&](absl::string_view plain) {
    return second != nullptr ? EncodeAdded(plain, second, nullptr, out)
                             : EncodeStage(plain, 0, out);
  };
  size_t gap_begin = 0;
  size_t at = 0;
  while (at < text.size()) {
    const ByteTrie::Match match = first->LongestPrefix(text.substr(at));
    if (match.value == ByteTrie::kNone) {
      ++at;
      continue;
    }
    RETURN_IF_ERROR(gap(text.substr(gap_begin, at - gap_begin)));
    out->ids.push_back(match.value);
    at += static_cast<size_t>(match.length);
    gap_begin = at;
  }
  return gap(text.substr(gap_begin));
}

absl::Status Tokenizer::EncodeStage(absl::string_view text, size_t stage,
                                    Encoding* out) const {
  if (text.empty()) return absl::OkStatus();
  if (stage == stages_.size()) {
    merger_.Encode(text, &out->ids);
    return absl::OkStatus();
  }
  // The match data is free again whenever a piece is handed on.
  return stages_[stage]->Split(text, &out->scratch,
                               [&](absl::string_view piece) {
                                 return EncodeStage(piece, stage + 1, out);
                               });
}

absl::StatusOr<std::string> Tokenizer::DecodeBytes(
    absl::Span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    ASSIGN_OR_RETURN(const absl::string_view bytes, TokenBytes(id));
    absl::StrAppend(&out, bytes);
  }
  return out;
}

bool Tokenizer::Contains(int32_t id) const {
  return id >= 0 && id < vocab_size() &&
         !spec_.tokens[static_cast<size_t>(id)].bytes.empty();
}

absl::StatusOr<absl::string_view> Tokenizer::TokenBytes(int32_t id) const {
  if (!Contains(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is not in the vocabulary of ",
                     vocab_size(), " ids"));
  }
  return absl::string_view(spec_.tokens[static_cast<size_t>(id)].bytes);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return Contains(id) && spec_.tokens[static_cast<size_t>(id)].special;
}

bool Tokenizer::IsAdded(int32_t id) const {
  return Contains(id) && spec_.tokens[static_cast<size_t>(id)].added;
}

std::optional<int32_t> Tokenizer::IdOf(absl::string_view bytes) const {
  const auto it = ids_.find(bytes);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace baton::tokenizer
