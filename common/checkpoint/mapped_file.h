// A whole file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::checkpoint {

// Immutable after Open, so any thread may read. The mapping is shared with the
// page cache: a file that is truncated while mapped raises SIGBUS on access, as
// with every mmap reader, so checkpoints are replaced by renaming and not in
// place.
class MappedFile final {
 public:
  // NotFound, PermissionDenied, or InvalidArgument for what is not a regular
  // file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(
      absl::string_view path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const {
    return {data_, static_cast<size_t>(size_bytes_)};
  }
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(data_),
            static_cast<size_t>(size_bytes_)};
  }

 private:
  MappedFile(std::string path, const std::byte* data, int64_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

  const std::string path_;
  const std::byte* const data_;  // null when the file is empty
  const int64_t size_bytes_;
};

}  // namespace baton::checkpoint
