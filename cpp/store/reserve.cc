#include "reserve.h"

#include <fcntl.h>

namespace everlong::store {

bool IsReserveForeign(const FilePath& folder) {
  const FilePath path = folder / kReserveFile;
  const Result<FileKind> kind = KindOf(path);
  if (!kind.ok() || *kind == FileKind::kNone) return !kind.ok();
  const int64_t size = StampOf(path).size;
  return *kind != FileKind::kFile || (size != 0 && size != kReserveBytes);
}

void KeepReserve(const FilePath& folder) {
  const FilePath path = folder / kReserveFile;
  const Result<int64_t> there = AllocatedBytes(path);
  if (!there.ok() || *there >= kReserveBytes) return;
  const Result<UniqueFd> file = OpenFile(path, O_RDWR | O_CREAT);
  if (file.ok() && ::posix_fallocate(file->get(), 0, kReserveBytes) == 0) return;
  ReleaseReserve(folder);
}

void ReleaseReserve(const FilePath& folder) { static_cast<void>(RemoveFile(folder / kReserveFile)); }

}  // namespace everlong::store
