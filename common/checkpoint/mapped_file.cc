#include "common/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::checkpoint {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(
    absl::string_view path) {
  std::string owned(path);
  const int fd = ::open(owned.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a regular file"));
  }
  const int64_t size_bytes = info.st_size;
  const std::byte* data = nullptr;
  if (size_bytes > 0) {
    void* const mapped = ::mmap(nullptr, static_cast<size_t>(size_bytes),
                                PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return absl::ErrnoToStatus(
          error, absl::StrCat("cannot map ", size_bytes, " bytes of ", path));
    }
    data = static_cast<const std::byte*>(mapped);
  }
  ::close(fd);
  return std::unique_ptr<MappedFile>(
      new MappedFile(std::move(owned), data, size_bytes));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_));
  }
}

}  // namespace baton::checkpoint
