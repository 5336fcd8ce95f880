#include "everlong/base/file_mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "everlong/base/file.h"

namespace everlong {

Result<FileMapping> FileMapping::Of(const UniqueFd& file, const FilePath& path, int64_t bytes) {
  if (bytes == 0) return FileMapping();
  const auto size = static_cast<size_t>(bytes);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError("cannot map", path, errno);
  return FileMapping({static_cast<const std::byte*>(mapped), size});
}

FileMapping::~FileMapping() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // mmap gave it so
}

}  // namespace everlong
