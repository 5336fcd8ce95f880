#include "everlong/base/file_mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "everlong/base/file.h"

namespace everlong {

Result<FileMapping> FileMapping::Of(const UniqueFd& file, const FilePath& path, int64_t bytes) {
  if (bytes == 0) return FileMapping();
  const auto size = static_cast<size_t>(bytes);
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError("cannot map", path, errno);
  return FileMapping({static_cast<std::byte*>(mapped), size});
}

FileMapping::~FileMapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace everlong
