#include "common/checkpoint/digest.h"

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/mapped_file.h"
#include "common/checkpoint/shard_index.h"

namespace baton::checkpoint {
namespace {

absl::string_view TextOf(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string BaseName(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path
                                                      : path.substr(slash + 1));
}

struct Sum {
  std::string hex;
  std::string name;
};

absl::StatusOr<std::vector<Sum>> ParseSums(absl::string_view path,
                                           absl::string_view text) {
  std::vector<Sum> out;
  absl::flat_hash_set<std::string> seen;
  int32_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (line.empty()) continue;
    // 64 digits, a space, a space (text) or star (binary), the name.
    const auto bad = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", line_number, ": ", what));
    };
    if (line.size() < 67 || line[64] != ' ' ||
        (line[65] != ' ' && line[65] != '*')) {
      return bad("expected 64 hex digits, two spaces and a file name");
    }
    const absl::string_view hex = line.substr(0, 64);
    if (!std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
      return bad("expected 64 hex digits");
    }
    const absl::string_view name = line.substr(66);
    if (!IsPlainFileName(name)) return bad("expected a plain file name");
    if (!seen.insert(std::string(name)).second) {
      return bad(absl::StrCat("'", name, "' appears twice"));
    }
    out.push_back({absl::AsciiStrToLower(hex), std::string(name)});
  }
  return out;
}

}  // namespace

DigestScope ModelDigestScope(int64_t tensor_bytes) {
  return tensor_bytes <= kFullDigestMaxBytes ? DigestScope::kAllBytes
                                             : DigestScope::kSmallTensors;
}

Sha256Digest DigestOf(const ModelConfig& config,
                      absl::Span<const std::unique_ptr<SafetensorsFile>> files,
                      DigestScope scope) {
  std::vector<const TensorView*> tensors;
  for (const auto& file : files) {
    for (const TensorView& tensor : file->tensors()) tensors.push_back(&tensor);
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView* a, const TensorView* b) {
              return a->name < b->name;
            });
  Sha256Hasher hasher;
  hasher.Update("baton-model-1\n");
  hasher.Update(CanonicalText(config));
  for (const TensorView* const tensor : tensors) {
    // The name's length in front: no two lists give the same text.
    hasher.Update(absl::StrCat(tensor->name.size(), ":", tensor->name, " ",
                               Describe(tensor->dtype, tensor->shape), " ",
                               tensor->bytes, "\n"));
    if (scope == DigestScope::kAllBytes ||
        tensor->bytes <= kSmallTensorMaxBytes) {
      hasher.Update(TextOf({tensor->data, static_cast<size_t>(tensor->bytes)}));
    }
  }
  return hasher.Finish();
}

absl::Status CompareSums(
    absl::string_view dir,
    absl::Span<const std::unique_ptr<SafetensorsFile>> files,
    ContentCheck* check) {
  const std::string path = absl::StrCat(dir, "/SHA256SUMS");
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return absl::OkStatus();
  check->has_sums = true;
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> sums_file,
                   MappedFile::Open(path));
  ASSIGN_OR_RETURN(const std::vector<Sum> sums,
                   ParseSums(path, sums_file->text()));

  absl::flat_hash_map<std::string, const SafetensorsFile*> unlisted;
  for (const auto& file : files) {
    unlisted.emplace(BaseName(file->path()), file.get());
  }
  for (const Sum& sum : sums) {
    const auto shard = unlisted.find(sum.name);
    Sha256Digest digest;
    if (shard != unlisted.end()) {
      digest = Sha256(TextOf(shard->second->image()));
      unlisted.erase(shard);
    } else {
      ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                       MappedFile::Open(absl::StrCat(dir, "/", sum.name)));
      digest = Sha256(file->text());
    }
    if (HexOf(digest) != sum.hex) {
      return absl::DataLossError(
          absl::StrCat(dir, "/", sum.name, ": SHA-256 is ", HexOf(digest),
                       ", expected ", sum.hex, " (SHA256SUMS)"));
    }
    ++check->files_compared;
  }
  if (!unlisted.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " does not list the shard '", unlisted.begin()->first, "'"));
  }
  return absl::OkStatus();
}

}  // namespace baton::checkpoint
