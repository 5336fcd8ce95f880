#include "everlong/index/index_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"
#include "everlong/base/mapped_reads.h"

namespace everlong::index {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr std::string_view kUnfinished = ".writing";
constexpr int64_t kCheckedAtOnce = int64_t{1} << 20;
constexpr size_t kReadAtOnce = size_t{4} << 20;  // of a mapping

// The end of a file with an appendix: CRC-32C of the index's own checksum, the appendix and all of this before it.
struct Tail {
  int64_t index_bytes = 0;
  std::array<char, 20> magic = {};
  uint32_t checksum = 0;
};
static_assert(sizeof(Tail) == 32);
constexpr std::array<char, 20> kTailMagic = {'\n', 'e', 'v', 'e', 'r', 'l', 'o', 'n', 'g', ' ',
                                             'a',  'p', 'p', 'e', 'n', 'd', 'i', 'x', '1', '\n'};

std::span<const std::byte> Checked(const Tail& tail) {
  return std::as_bytes(std::span(&tail, 1)).first(sizeof(Tail) - sizeof(tail.checksum));
}

// Return the bytes of the index in a file of `size` bytes that ends with `tail`; all bytes if `tail` is not a tail.
int64_t IndexBytes(const Tail& tail, int64_t size) {
  const int64_t most = size - static_cast<int64_t>(sizeof(Tail));
  const bool is_tail =
      tail.magic == kTailMagic && tail.index_bytes >= int64_t{sizeof(uint32_t)} && tail.index_bytes <= most;
  return is_tail ? tail.index_bytes : size;
}

}  // namespace

FilePath TemporaryOf(const FilePath& file) {
  static std::atomic<uint64_t> next = 0;
  return file + ("." + std::to_string(getpid()) + "." + std::to_string(next++) + std::string(kUnfinished));
}

std::string Quoted(const FilePath& file) {
  std::string quoted(1, '\'');
  quoted.append(file.string()).append(1, '\'');
  return quoted;
}

void RemoveUnfinished(const FilePath& file) {
  const std::string begin = file.filename() + ".";
  // One that cannot be removed means nothing to whoever reads.
  static_cast<void>(RemoveFiles(file.parent(), [&begin](std::string_view name) {
    return name.starts_with(begin) && name.ends_with(kUnfinished);
  }));
}

Result<uint32_t> ChecksumOf(const FilePath& file) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
  uint32_t checksum = 0;
  const auto bytes = std::as_writable_bytes(std::span(&checksum, 1));
  if (size < std::ssize(bytes)) return CorruptError(Quoted(file) + " is cut short");
  EVERLONG_ASSIGN_OR_RETURN(const int64_t got, ReadAt(opened, file, size - std::ssize(bytes), bytes));
  if (got != std::ssize(bytes)) return CorruptError(Quoted(file) + " is cut short");
  return checksum;
}

Result<std::optional<Appendix>> ReadAppendix(const FilePath& file) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
  EVERLONG_RETURN_IF_ERROR(RequireOnDisk(opened, file, 0, size));
  Tail tail;
  const int64_t at = size - static_cast<int64_t>(sizeof tail);
  if (at < 0) return std::optional<Appendix>();
  EVERLONG_ASSIGN_OR_RETURN(int64_t got, ReadAt(opened, file, at, std::as_writable_bytes(std::span(&tail, 1))));
  if (got != sizeof tail) return CorruptError(Quoted(file) + " is cut short");
  const int64_t index_bytes = IndexBytes(tail, size);
  if (index_bytes == size) return std::optional<Appendix>();
  constexpr size_t kOwn = sizeof(uint32_t);  // the index's checksum
  std::vector<std::byte> bytes(static_cast<size_t>(at - index_bytes) + kOwn);
  EVERLONG_ASSIGN_OR_RETURN(got, ReadAt(opened, file, index_bytes - static_cast<int64_t>(kOwn), bytes));
  if (got != std::ssize(bytes)) return CorruptError(Quoted(file) + " is cut short");
  if (Crc32c(Checked(tail), Crc32c(bytes)) != tail.checksum) {
    return CorruptError(Quoted(file) + ": checksum of its appendix differs");
  }
  bytes.erase(bytes.begin(), bytes.begin() + kOwn);
  return std::optional(Appendix{std::move(bytes), tail.checksum});
}

Status CheckIndexFile(const FilePath& file) {
  EVERLONG_RETURN_IF_ERROR(ReadAppendix(file).status());
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
  Tail tail;
  if (const int64_t at = size - static_cast<int64_t>(sizeof tail); at >= 0) {
    EVERLONG_RETURN_IF_ERROR(ReadAt(opened, file, at, std::as_writable_bytes(std::span(&tail, 1))).status());
  }
  const int64_t end = IndexBytes(tail, size) - static_cast<int64_t>(sizeof(uint32_t));
  uint32_t stored = 0;
  if (end < 0) return CorruptError(Quoted(file) + " is cut short");
  EVERLONG_RETURN_IF_ERROR(ReadAt(opened, file, end, std::as_writable_bytes(std::span(&stored, 1))).status());
  uint32_t crc = 0;
  std::vector<std::byte> piece;
  for (int64_t at = 0; at < end; at += std::ssize(piece)) {
    piece.resize(static_cast<size_t>(std::min(kCheckedAtOnce, end - at)));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t got, ReadAt(opened, file, at, piece));
    if (got != std::ssize(piece)) return CorruptError(Quoted(file) + " is cut short");
    crc = Crc32c(piece, crc);
  }
  return crc == stored ? OkStatus() : CorruptError(Quoted(file) + ": checksum differs");
}

IndexFileWriter::IndexFileWriter(IndexFile file, FilePath temporary, UniqueFd written)
    : file_(std::move(file)), temporary_(std::move(temporary)), written_(std::move(written)) {}

IndexFileWriter::~IndexFileWriter() {
  if (written_.get() >= 0) static_cast<void>(RemoveFile(temporary_));
}

Result<IndexFileWriter> IndexFileWriter::Create(const IndexFile& file, std::string_view magic) {
  FilePath temporary = TemporaryOf(file.path);
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd created, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL));
  IndexFileWriter writer(file, std::move(temporary), std::move(created));
  writer.Write(AsBytes(magic));
  return writer;
}

void IndexFileWriter::Write(std::span<const std::byte> bytes) {
  if (!status_.ok()) return;
  crc_ = Crc32c(bytes, crc_);
  status_ = WriteAt(written_, temporary_, bytes_, std::span(&bytes, 1));
  bytes_ += std::ssize(bytes);
}

void IndexFileWriter::WriteAppendix(std::span<const std::byte> bytes, uint32_t own) {
  Tail tail{bytes_, kTailMagic, 0};
  tail.checksum = Crc32c(Checked(tail), Crc32c(bytes, Crc32c(std::as_bytes(std::span(&own, 1)))));
  Write(bytes);
  WriteValue(tail);
}

void IndexFileWriter::Align(int64_t bytes) {
  Write(std::vector<std::byte>(static_cast<size_t>((bytes - bytes_ % bytes) % bytes)));
}

Status IndexFileWriter::Commit() {
  const uint32_t crc = crc_;  // which writing changes
  WriteValue(crc);
  if (file_.appendix) WriteAppendix(*file_.appendix, crc);
  EVERLONG_RETURN_IF_ERROR(status_);
  EVERLONG_RETURN_IF_ERROR(SyncFile(written_, temporary_));
  EVERLONG_RETURN_IF_ERROR(RenameFile(temporary_, file_.path));
  written_ = UniqueFd();
  return OkStatus();
}

Status IndexFileReader::Truncated() const {
  return CorruptError(Quoted(name_) + " has fewer bytes than its header says");
}

Status MappedIndexFile::Check() const {
  uint32_t stored = 0;
  std::memcpy(&stored, mapping_.bytes().data() + checked_bytes_, sizeof stored);
  const std::span<const std::byte> bytes = mapping_.bytes().first(checked_bytes_);
  uint32_t crc = 0;
  for (size_t at = 0; at < bytes.size(); at += kReadAtOnce) {
    ReadSoon(bytes.subspan(at, std::min(2 * kReadAtOnce, bytes.size() - at)));
    crc = Crc32c(bytes.subspan(at, std::min(kReadAtOnce, bytes.size() - at)), crc);
  }
  if (crc == stored) return OkStatus();
  return CorruptError(Quoted(name_) + ": checksum differs");
}

Result<IndexFileReader> IndexFileReader::Map(const FilePath& file, size_t least_bytes) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
  EVERLONG_RETURN_IF_ERROR(RequireOnDisk(opened, file, 0, size));
  const size_t least = least_bytes + sizeof(uint32_t);
  if (std::cmp_less(size, least)) {
    return CorruptError(Quoted(file) + " has " + std::to_string(size) + " bytes, expected at least " +
                        std::to_string(least));
  }
  IndexFileReader reader(file);
  EVERLONG_ASSIGN_OR_RETURN(reader.mapping_, FileMapping::Of(opened, file, size));
  std::span<const std::byte> bytes = reader.mapping_.bytes();
  if (bytes.size() >= sizeof(Tail)) {
    Tail tail;
    std::memcpy(&tail, bytes.last(sizeof tail).data(), sizeof tail);
    bytes = bytes.first(static_cast<size_t>(IndexBytes(tail, size)));
  }
  if (bytes.size() < least) return reader.Truncated();
  reader.bytes_ = bytes.first(bytes.size() - sizeof(uint32_t));
  return reader;
}

Result<IndexFileReader> IndexFileReader::Open(const FilePath& file, std::string_view magic) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, Map(file, magic.size()));
  uint32_t stored = 0;
  std::memcpy(&stored, reader.bytes_.data() + reader.bytes_.size(), sizeof stored);
  if (Crc32c(reader.bytes_) != stored) return CorruptError(Quoted(file) + ": checksum differs");
  EVERLONG_RETURN_IF_ERROR(reader.TakeMagic(magic));
  return reader;
}

Result<IndexFileReader> IndexFileReader::OpenUnchecked(const FilePath& file, std::string_view magic) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, Map(file, magic.size()));
  EVERLONG_RETURN_IF_ERROR(reader.TakeMagic(magic));
  return reader;
}

Status IndexFileReader::CheckSoFar() {
  const uint32_t found = Crc32c(bytes_.first(static_cast<size_t>(at_)));
  uint32_t stored = 0;
  EVERLONG_RETURN_IF_ERROR(ReadValue(stored));
  return found == stored ? OkStatus() : Corrupt("checksum differs");
}

Result<IndexFileReader> IndexFileReader::OfAppendix(const FilePath& file, const Appendix& appendix,
                                                    std::string_view magic) {
  IndexFileReader reader(file);
  reader.bytes_ = appendix.bytes;
  EVERLONG_RETURN_IF_ERROR(reader.TakeMagic(magic));
  return reader;
}

Status IndexFileReader::Take(std::span<std::byte> out) {
  if (out.size() > left()) return Truncated();
  std::ranges::copy(bytes_.subspan(static_cast<size_t>(at_), out.size()), out.begin());
  at_ += std::ssize(out);
  return OkStatus();
}

Status IndexFileReader::Align(int64_t bytes) {
  const int64_t more = (bytes - at_ % bytes) % bytes;
  if (std::cmp_greater(more, left())) return Truncated();
  at_ += more;
  return OkStatus();
}

Status IndexFileReader::TakeMagic(std::string_view magic) {
  std::string found(magic.size(), '\0');
  const Status taken = Take(std::as_writable_bytes(std::span(found)));
  if (taken.ok() && found == magic) return OkStatus();
  return CorruptError(Quoted(name_) + " is of another kind");
}

}  // namespace everlong::index
