#include "common/checkpoint/shard_index.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_file.h"

namespace baton::checkpoint {
namespace {

using Json = nlohmann::json;
using Shards = std::vector<std::unique_ptr<SafetensorsFile>>;

constexpr absl::string_view kIndexName = "model.safetensors.index.json";

// tensor name -> file name
using WeightMap = absl::flat_hash_map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadWeightMap(absl::string_view path) {
  ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an object 'weight_map'"));
  }
  WeightMap out;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() ||
        !IsPlainFileName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", absl::CHexEscape(tensor), "' is in ",
                       file.dump(-1, ' ', /*ensure_ascii=*/true),
                       ", expected a plain file name"));
    }
    out.emplace(tensor, file.get_ref<const std::string&>());
  }
  if (out.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": 'weight_map' is empty"));
  }
  return out;
}

absl::Status CheckAgainstIndex(
    absl::string_view index_path, const WeightMap& weight_map,
    const std::map<std::string, SafetensorsFile*>& by_name) {
  for (const auto& [file_name, file] : by_name) {
    for (const TensorView& tensor : file->tensors()) {
      const auto it = weight_map.find(tensor.name);
      if (it == weight_map.end()) {
        return absl::FailedPreconditionError(
            absl::StrCat(file->path(), ": tensor '", tensor.name,
                         "' is not listed in ", index_path));
      }
      if (it->second != file_name) {
        return absl::FailedPreconditionError(absl::StrCat(
            file->path(), ": tensor '", tensor.name, "' is listed in ",
            index_path, " for ", it->second, ", not for this file"));
      }
    }
  }
  for (const auto& [tensor, file_name] : weight_map) {
    SafetensorsFile* const file = by_name.at(file_name);
    if (file->Find(tensor) == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(file->path(), ": tensor '", tensor, "' is missing, but ",
                       index_path, " lists it for this file"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Shards> OpenIndexed(absl::string_view dir,
                                   absl::string_view index_path) {
  ASSIGN_OR_RETURN(const WeightMap weight_map, ReadWeightMap(index_path));
  // Sorted, so that shards and messages come in one order.
  std::map<std::string, SafetensorsFile*> by_name;
  for (const auto& [tensor, file_name] : weight_map) {
    by_name.emplace(file_name, nullptr);
  }
  Shards out;
  for (auto& [file_name, file] : by_name) {
    ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> opened,
                     SafetensorsFile::Open(absl::StrCat(dir, "/", file_name)));
    file = opened.get();
    out.push_back(std::move(opened));
  }
  RETURN_IF_ERROR(CheckAgainstIndex(index_path, weight_map, by_name));
  return out;
}

absl::StatusOr<Shards> OpenSingle(const std::string& dir) {
  DIR* const handle = ::opendir(dir.c_str());
  if (handle == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot list ", dir));
  }
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(handle)) {
    if (absl::EndsWith(entry->d_name, ".safetensors")) {
      names.emplace_back(entry->d_name);
    }
  }
  ::closedir(handle);
  if (names.size() != 1) {
    return absl::NotFoundError(absl::StrCat(
        dir, ": no ", kIndexName, " and ", names.size(),
        " .safetensors files, expected an index or exactly one file"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                   SafetensorsFile::Open(absl::StrCat(dir, "/", names[0])));
  Shards out;
  out.push_back(std::move(file));
  return out;
}

}  // namespace

bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == absl::string_view::npos &&
         name.find('\0') == absl::string_view::npos;
}

absl::StatusOr<Shards> OpenShards(absl::string_view dir) {
  const std::string index_path = absl::StrCat(dir, "/", kIndexName);
  struct stat info;
  if (::stat(index_path.c_str(), &info) == 0) {
    return OpenIndexed(dir, index_path);
  }
  if (errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", index_path));
  }
  return OpenSingle(std::string(dir));
}

}  // namespace baton::checkpoint
