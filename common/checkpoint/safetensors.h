// Reader of safetensors files: an 8-byte little-endian header length, a JSON
// header of {name: {dtype, shape, data_offsets}}, then the tensors' bytes.
//
// Nothing in a file is trusted. Refused, with the file and the tensor named:
// a header longer than 100 MB or than the file; text that is not JSON; unknown
// dtypes; shapes whose product overflows; a byte range that differs from shape
// x dtype, that leaves the data section, overlaps another or leaves a hole;
// data after the last tensor; a name given twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/dtype.h"
#include "common/checkpoint/mapped_file.h"

namespace baton::checkpoint {

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// One tensor: row-major, little-endian, borrowed from the bytes it was parsed
// from. A scalar has an empty shape and one element.
struct TensorView {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // not null unless bytes == 0
  int64_t bytes = 0;

  int64_t num_elements() const { return bytes / DTypeBytes(dtype); }
  // The values as T; the caller has checked dtype and that data is aligned.
  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(data),
            static_cast<size_t>(bytes) / sizeof(T)};
  }
};

// "F32 [4, 1024]" for messages.
std::string Describe(DType dtype, absl::Span<const int64_t> shape);

// Parses a complete file image; views are in order of their bytes and borrow
// from `image`. `file_name` is for messages. InvalidArgument for a malformed
// file, DataLoss for one that is shorter than its header says.
absl::StatusOr<std::vector<TensorView>> ParseSafetensors(
    absl::string_view file_name, absl::Span<const std::byte> image);

// A mapped file. Views live as long as this object. Immutable: any thread may
// read.
//
// The format does not promise alignment. A tensor that is not aligned to its
// element size is copied once into memory owned by this object, so every view
// can be read through a typed pointer.
class SafetensorsFile final {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      absl::string_view path);

  const std::string& path() const { return file_->path(); }
  // In order of their bytes in the file.
  absl::Span<const TensorView> tensors() const { return tensors_; }
  // Null when there is none.
  const TensorView* Find(absl::string_view name) const;
  // The whole file, for checksums.
  absl::Span<const std::byte> image() const { return file_->bytes(); }
  // Bytes copied because they were not aligned; 0 for well-made files.
  int64_t realigned_bytes() const { return realigned_bytes_; }

 private:
  SafetensorsFile(std::unique_ptr<MappedFile> file,
                  std::vector<TensorView> tensors);
  void Realign();

  const std::unique_ptr<MappedFile> file_;
  std::vector<TensorView> tensors_;
  absl::flat_hash_map<absl::string_view, const TensorView*> by_name_;
  std::vector<std::unique_ptr<int64_t[]>> realigned_;
  int64_t realigned_bytes_ = 0;
};

}  // namespace baton::checkpoint
