#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "record.h"
#include "segment_set.h"

namespace everlong::store {
namespace {

constexpr std::string_view kExtension = ".kvseg";
constexpr std::string_view kTemporary = ".tmp";  // left over where a crash cut a replacement
constexpr size_t kMaxOpenFiles = 256;

std::string SegmentFileName(int32_t segment) {
  std::string digits = std::to_string(segment);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return digits.append(kExtension);
}

// The number in a segment's file name; 0 for any other name.
int32_t SegmentNumber(std::string_view name) {
  if (!name.ends_with(kExtension)) return 0;
  const std::string_view stem = name.substr(0, name.size() - kExtension.size());
  int32_t number = 0;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), number);
  if (error != std::errc() || end != stem.data() + stem.size() || number < 0) return 0;
  return number;
}

// Return the gaps between the ranges, up to `end`.
std::vector<ByteRange> Gaps(const std::vector<ByteRange>& live, int64_t end) {
  std::vector<ByteRange> gaps;
  int64_t at = 0;
  for (const ByteRange& range : live) {
    if (range.begin > at) gaps.push_back({at, range.begin});
    at = std::max(at, range.end);
  }
  if (end > at) gaps.push_back({at, end});
  return gaps;
}

// Puts a copy of these ranges of an open file, of `size` bytes, in its place.
Status ReplaceByCopy(const UniqueFd& file, const FilePath& path, const FilePath& temporary, int64_t size,
                     const std::vector<ByteRange>& live) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd copy, OpenFile(temporary, O_RDWR | O_CREAT | O_EXCL));
  if (::ftruncate(copy.get(), size) != 0) return ErrnoError("cannot size", temporary, errno);
  for (const ByteRange& range : live) {
    EVERLONG_RETURN_IF_ERROR(CopyRange(file, path, copy, temporary, range.begin, range.end));
  }
  EVERLONG_RETURN_IF_ERROR(SyncFile(copy, temporary));
  return RenameFile(temporary, path);
}

}  // namespace

Result<std::unique_ptr<SegmentFiles>> SegmentFiles::OpenForWriting(const FilePath& folder, int32_t newest_named,
                                                                   int64_t segment_bytes) {
  auto segments = std::make_unique<SegmentFiles>(folder);
  EVERLONG_RETURN_IF_ERROR(segments->StartWriting(newest_named, segment_bytes));
  return segments;
}

FilePath SegmentFiles::Path(int32_t segment) const { return folder_ / SegmentFileName(segment); }

Result<std::map<int32_t, FilePath>> SegmentFiles::Files() const {
  std::map<int32_t, FilePath> files;
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder_));
  for (const std::string& name : names) {
    const int32_t number = SegmentNumber(name);
    if (number == 0) continue;
    const FilePath file = folder_ / name;
    // A link or a folder of such a name is no segment.
    EVERLONG_ASSIGN_OR_RETURN(const FileKind kind, KindOf(file));
    if (kind == FileKind::kFile) files[number] = file;
  }
  return files;
}

Status SegmentFiles::RemoveLeftovers() const {
  return RemoveFiles(folder_, [](std::string_view name) {
    return name.ends_with(kTemporary) && SegmentNumber(name.substr(0, name.size() - kTemporary.size())) > 0;
  });
}

Status SegmentFiles::StartWriting(int32_t newest_named, int64_t segment_bytes) {
  segment_bytes_ = segment_bytes;
  EVERLONG_RETURN_IF_ERROR(RemoveLeftovers());
  EVERLONG_ASSIGN_OR_RETURN(const auto files, Files());
  const int32_t newest_file = files.empty() ? 0 : files.rbegin()->first;
  newest_ = std::max(newest_named, newest_file);
  if (newest_file == 0 || newest_file < newest_named) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(Path(newest_), O_RDWR, Names::kAny));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t links, LinkCount(file, Path(newest_)));
  if (links > 1) return OkStatus();  // a fork reads it too, so nothing is added to it
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, Path(newest_)));
  active_ = std::move(file);
  end_ = AlignRecord(size);
  return OkStatus();
}

Result<SegmentSpot> SegmentFiles::Append(AppendSource& source) {
  const auto bytes = static_cast<int64_t>(source.bytes());
  const std::vector<std::span<const std::byte>> pieces = source.Pieces();
  if (!active_ || (end_ > 0 && end_ + bytes > segment_bytes_)) EVERLONG_RETURN_IF_ERROR(StartSegment());
  const FilePath path = Path(newest_);
  if (Status written = WriteAt(*active_, path, end_, pieces); !written.ok()) {
    // Give the space of a torn write back. If that fails too, the next append begins a new segment behind it.
    if (::ftruncate(active_->get(), end_) != 0) {
      EVERLONG_RETURN_IF_ERROR(SyncActive());
      active_.reset();
    }
    return written;
  }
  unsynced_ = true;
  // Start the disk now and not with the fsync: the next block's checksums are computed meanwhile.
  static_cast<void>(::sync_file_range(active_->get(), end_, bytes, SYNC_FILE_RANGE_WRITE));
  const SegmentSpot spot{newest_, end_};
  end_ = AlignRecord(end_ + bytes);
  return spot;
}

Status SegmentFiles::Sync() {
  // Keep this failure, like that of a segment which an Append left behind.
  static_cast<void>(SyncActive());
  return std::exchange(sync_failure_, OkStatus());
}

Status SegmentFiles::SyncActive() {
  if (!std::exchange(unsynced_, false) || !active_) return OkStatus();
  const Status synced = SyncFile(*active_, Path(newest_));
  if (synced.ok()) return synced;
  // After a failed fsync the system may call lost pages clean, so this file takes no more.
  active_.reset();
  if (sync_failure_.ok()) sync_failure_ = synced;
  return synced;
}

Status SegmentFiles::StartSegment() {
  EVERLONG_RETURN_IF_ERROR(SyncActive());
  active_.reset();
  do {
    if (newest_ == INT32_MAX) return CapacityError("'" + folder_.string() + "' has no number left for a segment");
    ++newest_;
  } while (Exists(Path(newest_)));  // a link of that name, say
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(Path(newest_), O_RDWR | O_CREAT | O_EXCL));
  EVERLONG_RETURN_IF_ERROR(SyncFolder(folder_));
  active_ = std::move(file);
  end_ = 0;
  return OkStatus();
}

Status SegmentFiles::Require(SegmentSpot spot, int64_t bytes) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::shared_ptr<const UniqueFd> file, FileOf(spot.segment));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(*file, Path(spot.segment)));
  if (size < spot.offset + bytes) return Ends(spot, size, bytes);
  return RequireOnDisk(*file, Path(spot.segment), spot.offset, spot.offset + bytes);
}

Status SegmentFiles::Ends(SegmentSpot spot, int64_t size, int64_t bytes) const {
  return CorruptError("segment '" + Path(spot.segment).string() + "' ends at byte " + std::to_string(size) +
                      " where it should go on to byte " + std::to_string(spot.offset + bytes));
}

Status SegmentFiles::Read(SegmentSpot spot, std::span<std::byte> out) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::shared_ptr<const UniqueFd> file, FileOf(spot.segment));
  const FilePath path = Path(spot.segment);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(*file, path, spot.offset, out));
  if (count == static_cast<int64_t>(out.size())) return OkStatus();
  return Ends(spot, spot.offset + count, std::ssize(out));
}

// The descriptor stays open while a reader uses it, even when it has left the map.
Result<std::shared_ptr<const UniqueFd>> SegmentFiles::FileOf(int32_t segment) const {
  const std::scoped_lock lock(mutex_);
  if (const auto found = open_.find(segment); found != open_.end()) return found->second;
  Result<UniqueFd> file = OpenFile(Path(segment), O_RDONLY);
  if (file.status().code() == StatusCode::kNotFound) {
    return CorruptError("segment '" + Path(segment).string() + "' is missing; other segments are readable");
  }
  if (!file.ok()) return file.status();
  // Turn readahead off. Reads say how much they want, and many are under way in one file, so guesses at what comes next
  // only disturb them. This is advice: a system without it reads as well.
  static_cast<void>(::posix_fadvise(file->get(), 0, 0, POSIX_FADV_RANDOM));
  if (open_.size() >= kMaxOpenFiles) open_.erase(open_.begin());
  auto shared = std::make_shared<const UniqueFd>(std::move(file).value());
  open_.emplace(segment, shared);
  return shared;
}

void SegmentFiles::Reopen() const {
  const std::scoped_lock lock(mutex_);
  open_.clear();
}

Result<int64_t> SegmentFiles::Bytes() const {
  EVERLONG_ASSIGN_OR_RETURN(const auto files, Files());
  int64_t bytes = 0;
  for (const auto& [number, path] : files) {
    EVERLONG_ASSIGN_OR_RETURN(const int64_t allocated, AllocatedBytes(path));
    bytes += allocated;
  }
  return bytes;
}

Result<UniqueFd> SegmentFiles::HoldRemovals() const {
  // A reader may meet a memory without the folder: one without payload, whose empty folder an archive left out.
  Result<UniqueFd> handle = OpenFile(folder_, O_RDONLY | O_DIRECTORY);
  if (handle.status().code() == StatusCode::kNotFound) return UniqueFd();
  EVERLONG_RETURN_IF_ERROR(handle.status());
  EVERLONG_RETURN_IF_ERROR(LockFile(*handle, folder_, LockKind::kShared));
  return handle;
}

Result<int64_t> SegmentFiles::KeepOnly(const LiveRanges& live) {
  // Wait for forks under way: what they have linked is no longer ours alone.
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd handle, OpenFile(folder_, O_RDONLY | O_DIRECTORY));
  EVERLONG_RETURN_IF_ERROR(LockFile(handle, folder_, LockKind::kExclusive));
  EVERLONG_RETURN_IF_ERROR(RemoveLeftovers());  // they hold bytes that counted once
  EVERLONG_ASSIGN_OR_RETURN(const int64_t before, Bytes());
  EVERLONG_ASSIGN_OR_RETURN(const auto files, Files());
  Status failed;  // the first; the other files give back theirs all the same
  for (const auto& [number, path] : files) {
    EVERLONG_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDWR, Names::kAny));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t links, LinkCount(file, path));
    const auto ranges = live.find(number);
    const Status erased =
        ranges == live.end() ? Remove(number, file, links > 1) : EraseOutside(number, file, links > 1, ranges->second);
    if (failed.ok()) failed = erased;
  }
  EVERLONG_RETURN_IF_ERROR(failed);
  EVERLONG_RETURN_IF_ERROR(SyncFolder(folder_));
  Reopen();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t after, Bytes());
  return std::max<int64_t>(0, before - after);
}

Status SegmentFiles::Remove(int32_t segment, const UniqueFd& file, bool linked) {
  if (segment == newest_) active_.reset();
  // A reader may hold the file open, and would keep its bytes alive. A linked file's bytes belong to the fork too.
  if (!linked && ::ftruncate(file.get(), 0) != 0) return ErrnoError("cannot empty", Path(segment), errno);
  return RemoveFile(Path(segment));
}

Status SegmentFiles::EraseOutside(int32_t segment, const UniqueFd& file, bool linked,
                                  const std::vector<ByteRange>& live) {
  const FilePath path = Path(segment);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  const std::vector<ByteRange> gaps = Gaps(live, AlignRecord(size));
  if (gaps.empty()) return OkStatus();
  if (!linked) {
    for (const ByteRange& gap : gaps) EVERLONG_RETURN_IF_ERROR(EraseRange(file, path, gap.begin, gap.end));
    return SyncFile(file, path);
  }
  // A fork reads the file too: a copy with holes takes its place here.
  const FilePath temporary = path + kTemporary;
  if (Status replaced = ReplaceByCopy(file, path, temporary, size, live); !replaced.ok()) {
    static_cast<void>(RemoveFile(temporary));
    return replaced;
  }
  if (segment == newest_) active_.reset();
  return OkStatus();
}

Status SegmentFiles::CloneInto(const FilePath& folder, std::span<const int64_t> segments, bool newest_is_sealed) const {
  EVERLONG_ASSIGN_OR_RETURN(const auto files, Files());
  for (const int64_t segment : segments) {
    const auto found = std::ranges::find_if(files, [segment](const auto& file) { return file.first == segment; });
    if (found == files.end()) {
      return CorruptError("segment " + std::to_string(segment) + " is missing; verify with repair, then fork");
    }
    const bool may_link = newest_is_sealed || found->first != files.rbegin()->first;
    EVERLONG_RETURN_IF_ERROR(CloneFile(found->second, folder / SegmentFileName(found->first), may_link));
  }
  return SyncFolder(folder);
}

}  // namespace everlong::store
