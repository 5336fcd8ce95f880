#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "file.h"
#include "record.h"
#include "segment_set.h"

namespace everlong::store {
namespace {

constexpr std::string_view kExtension = ".kvseg";
constexpr size_t kMaxOpenFiles = 256;

std::string SegmentFileName(int32_t segment) {
  std::string digits = std::to_string(segment);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return digits.append(kExtension);
}

// The number in a segment's file name; 0 for any other name.
int32_t SegmentNumber(const std::filesystem::path& file) {
  if (file.extension() != kExtension) return 0;
  const std::string stem = file.stem().string();
  int32_t number = 0;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), number);
  if (error != std::errc() || end != stem.data() + stem.size() || number < 0) return 0;
  return number;
}

class FileSegments final : public SegmentSet {
 public:
  explicit FileSegments(std::filesystem::path folder) : folder_(std::move(folder)) {}

  Status StartWriting(int32_t newest_named, int64_t segment_bytes) {
    segment_bytes_ = segment_bytes;
    std::error_code error;
    int32_t newest_file = 0;
    std::filesystem::directory_iterator entry(folder_, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      newest_file = std::max(newest_file, SegmentNumber(entry->path()));
    }
    if (error) return ErrnoError("cannot list", folder_, error.value());
    newest_ = std::max(newest_named, newest_file);
    if (newest_file == 0 || newest_file < newest_named) return OkStatus();
    EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(Path(newest_), O_RDWR));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, Path(newest_)));
    active_ = std::move(file);
    end_ = AlignRecord(size);
    return OkStatus();
  }

  Result<SegmentSpot> Append(std::span<const std::span<const std::byte>> pieces) override {
    int64_t bytes = 0;
    for (const auto& piece : pieces) bytes += static_cast<int64_t>(piece.size());
    if (!active_ || (end_ > 0 && end_ + bytes > segment_bytes_)) EVERLONG_RETURN_IF_ERROR(StartSegment());
    const std::filesystem::path path = Path(newest_);
    if (Status written = WriteAt(*active_, path, end_, pieces); !written.ok()) {
      // Gives the space of a torn write back; where that fails too the next append begins a new segment behind it.
      if (::ftruncate(active_->get(), end_) != 0) active_.reset();
      return written;
    }
    if (Status synced = SyncFile(*active_, path); !synced.ok()) {
      // After a failed fsync the system may call lost pages clean: nothing more is entrusted to this file.
      active_.reset();
      return synced;
    }
    const SegmentSpot spot{newest_, end_};
    end_ = AlignRecord(end_ + bytes);
    return spot;
  }

  [[nodiscard]] Status Read(SegmentSpot spot, std::span<std::byte> out) const override {
    EVERLONG_ASSIGN_OR_RETURN(const std::shared_ptr<const UniqueFd> file, FileOf(spot.segment));
    const std::filesystem::path path = Path(spot.segment);
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(*file, path, spot.offset, out));
    if (count == static_cast<int64_t>(out.size())) return OkStatus();
    return CorruptError("segment '" + path.string() + "' ends at byte " + std::to_string(spot.offset + count) +
                        " where it should go on to byte " +
                        std::to_string(spot.offset + static_cast<int64_t>(out.size())));
  }

  [[nodiscard]] std::string Name(int32_t segment) const override { return Path(segment).string(); }

 private:
  [[nodiscard]] std::filesystem::path Path(int32_t segment) const { return folder_ / SegmentFileName(segment); }

  Status StartSegment() {
    active_.reset();
    ++newest_;
    EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(Path(newest_), O_RDWR | O_CREAT | O_EXCL));
    EVERLONG_RETURN_IF_ERROR(SyncFolder(folder_));
    active_ = std::move(file);
    end_ = 0;
    return OkStatus();
  }

  // The descriptor stays open while a reader uses it, even when it has left the map.
  [[nodiscard]] Result<std::shared_ptr<const UniqueFd>> FileOf(int32_t segment) const {
    const std::scoped_lock lock(mutex_);
    if (const auto found = open_.find(segment); found != open_.end()) return found->second;
    Result<UniqueFd> file = OpenFile(Path(segment), O_RDONLY);
    if (file.status().code() == StatusCode::kNotFound) {
      return CorruptError("segment '" + Path(segment).string() +
                          "' is missing; what lies in other segments is readable");
    }
    if (!file.ok()) return file.status();
    if (open_.size() >= kMaxOpenFiles) open_.erase(open_.begin());
    auto shared = std::make_shared<const UniqueFd>(std::move(file).value());
    open_.emplace(segment, shared);
    return shared;
  }

  std::filesystem::path folder_;
  int64_t segment_bytes_ = 0;
  std::optional<UniqueFd> active_;  // the segment that takes appends
  int32_t newest_ = 0;              // highest number given so far
  int64_t end_ = 0;                 // where the next append goes in `active_`
  mutable std::mutex mutex_;        // guards open_
  mutable std::map<int32_t, std::shared_ptr<const UniqueFd>> open_;
};

}  // namespace

std::unique_ptr<SegmentSet> OpenSegmentFiles(const std::filesystem::path& folder) {
  return std::make_unique<FileSegments>(folder);
}

Result<std::unique_ptr<SegmentSet>> OpenSegmentFilesForWriting(const std::filesystem::path& folder,
                                                               int32_t newest_named, int64_t segment_bytes) {
  auto segments = std::make_unique<FileSegments>(folder);
  EVERLONG_RETURN_IF_ERROR(segments->StartWriting(newest_named, segment_bytes));
  return std::unique_ptr<SegmentSet>(std::move(segments));
}

}  // namespace everlong::store
