#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_file.h"

namespace baton::checkpoint {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "tensor bytes are used as they are in the file");

constexpr int64_t kLengthBytes = 8;

// A non-negative integer that fits int64, or -1.
int64_t NonNegative(const Json& value) {
  if (!value.is_number_unsigned()) return -1;
  const uint64_t raw = value.get<uint64_t>();
  if (raw > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return -1;
  }
  return static_cast<int64_t>(raw);
}

absl::Status BadTensor(absl::string_view file_name, absl::string_view tensor,
                       absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      file_name, ": tensor '", absl::CHexEscape(tensor), "': ", what));
}

struct Entry {
  TensorView view;
  int64_t begin = 0;
  int64_t end = 0;
};

// Shape product times element size; -1 when it does not fit int64.
int64_t ExpectedBytes(DType dtype, absl::Span<const int64_t> shape) {
  int64_t bytes = DTypeBytes(dtype);
  // A zero dimension makes the product zero whatever the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  }
  return bytes;
}

absl::StatusOr<Entry> ParseEntry(absl::string_view file_name,
                                 const std::string& name, const Json& value,
                                 int64_t data_bytes) {
  const auto bad = [&](absl::string_view what) {
    return BadTensor(file_name, name, what);
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("expected exactly dtype, shape and data_offsets");
  }
  Entry entry;
  entry.view.name = name;
  const Json& dtype = value["dtype"];
  if (!dtype.is_string()) return bad("dtype: expected a string");
  const std::string& dtype_name = dtype.get_ref<const std::string&>();
  const std::optional<DType> parsed = ParseDType(dtype_name);
  if (!parsed.has_value()) {
    return bad(absl::StrCat("unknown dtype '", dtype_name, "'"));
  }
  entry.view.dtype = *parsed;
  const Json& shape = value["shape"];
  if (!shape.is_array()) return bad("shape: expected an array");
  for (const Json& dim : shape) {
    entry.view.shape.push_back(NonNegative(dim));
    if (entry.view.shape.back() < 0) {
      return bad("shape: expected non-negative integers");
    }
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    return bad("data_offsets: expected [begin, end]");
  }
  entry.begin = NonNegative(offsets[0]);
  entry.end = NonNegative(offsets[1]);
  if (entry.begin < 0 || entry.end < entry.begin) {
    return bad("data_offsets: expected 0 <= begin <= end");
  }
  entry.view.bytes = entry.end - entry.begin;
  const int64_t expected = ExpectedBytes(entry.view.dtype, entry.view.shape);
  if (expected != entry.view.bytes) {
    return bad(
        absl::StrCat(Describe(entry.view.dtype, entry.view.shape), " takes ",
                     expected < 0 ? "more than 2^63" : absl::StrCat(expected),
                     " bytes, but data_offsets hold ", entry.view.bytes));
  }
  if (entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat(
        file_name, ": tensor '", absl::CHexEscape(name),
        "': data ends at byte ", entry.end, ", but the file holds only ",
        data_bytes, " bytes of data"));
  }
  return entry;
}

absl::Status CheckMetadata(absl::string_view file_name, const Json& metadata) {
  if (!metadata.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": __metadata__: expected an object"));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_name, ": __metadata__ '", key, "': expected a string"));
    }
  }
  return absl::OkStatus();
}

// Tensors must tile the data section: each starts where the last one ended.
absl::Status CheckTiling(absl::string_view file_name,
                         absl::Span<const Entry> sorted, int64_t data_bytes) {
  int64_t cursor = 0;
  absl::string_view previous;
  for (const Entry& entry : sorted) {
    if (entry.begin < cursor) {
      return BadTensor(
          file_name, entry.view.name,
          absl::StrCat("bytes from ", entry.begin, " overlap tensor '",
                       previous, "', which ends at ", cursor));
    }
    if (entry.begin > cursor) {
      return BadTensor(
          file_name, entry.view.name,
          absl::StrCat("hole of ", entry.begin - cursor,
                       " bytes before it, expected it at byte ", cursor));
    }
    cursor = entry.end;
    previous = entry.view.name;
  }
  if (cursor != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ": tensors end at byte ", cursor, " of the data, but ",
        data_bytes, " bytes follow the header"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(DType dtype, absl::Span<const int64_t> shape) {
  return absl::StrCat(DTypeName(dtype), " [", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::vector<TensorView>> ParseSafetensors(
    absl::string_view file_name, absl::Span<const std::byte> image) {
  const int64_t file_bytes = static_cast<int64_t>(image.size());
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(
        file_name, ": ", file_bytes,
        " bytes, expected at least the 8 bytes of the header length"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, image.data(), sizeof(header_bytes));
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": header of ", header_bytes,
                     " bytes, expected at most ", kMaxHeaderBytes));
  }
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_start > file_bytes) {
    return absl::DataLossError(
        absl::StrCat(file_name, ": header of ", header_bytes,
                     " bytes in a file of ", file_bytes, " bytes"));
  }
  const absl::string_view header(
      reinterpret_cast<const char*>(image.data()) + kLengthBytes,
      static_cast<size_t>(header_bytes));
  if (header.empty() || header.front() != '{') {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": header does not start with '{'"));
  }
  ASSIGN_OR_RETURN(
      const Json json,
      ParseJsonStrict(header, absl::StrCat(file_name, ": header")));

  const int64_t data_bytes = file_bytes - data_start;
  std::vector<Entry> entries;
  entries.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(file_name, value));
      continue;
    }
    if (name.empty()) return BadTensor(file_name, name, "empty name");
    ASSIGN_OR_RETURN(Entry entry,
                     ParseEntry(file_name, name, value, data_bytes));
    entries.push_back(std::move(entry));
  }
  // By end too, so that empty tensors come before the one that starts there.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.view.name) <
           std::tie(b.begin, b.end, b.view.name);
  });
  RETURN_IF_ERROR(CheckTiling(file_name, entries, data_bytes));

  std::vector<TensorView> views;
  views.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.view.data = image.data() + data_start + entry.begin;
    views.push_back(std::move(entry.view));
  }
  return views;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    absl::string_view path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(std::vector<TensorView> tensors,
                   ParseSafetensors(path, file->bytes()));
  return std::unique_ptr<SafetensorsFile>(
      new SafetensorsFile(std::move(file), std::move(tensors)));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<MappedFile> file,
                                 std::vector<TensorView> tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  Realign();
  for (const TensorView& tensor : tensors_) {
    by_name_.emplace(tensor.name, &tensor);
  }
}

void SafetensorsFile::Realign() {
  for (TensorView& tensor : tensors_) {
    const auto address = reinterpret_cast<uintptr_t>(tensor.data);
    if (address % static_cast<uintptr_t>(DTypeBytes(tensor.dtype)) == 0) {
      continue;
    }
    const size_t size = static_cast<size_t>(tensor.bytes);
    auto copy = std::make_unique<int64_t[]>((size + 7) / 8);
    if (size > 0) std::memcpy(copy.get(), tensor.data, size);
    tensor.data = reinterpret_cast<const std::byte*>(copy.get());
    realigned_.push_back(std::move(copy));
    realigned_bytes_ += tensor.bytes;
  }
}

const TensorView* SafetensorsFile::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

}  // namespace baton::checkpoint
