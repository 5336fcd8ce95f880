#include "everlong/index/index_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"

namespace everlong::index {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr std::string_view kUnfinished = ".writing";

std::filesystem::path TemporaryOf(const std::filesystem::path& file) {
  static std::atomic<uint64_t> next = 0;
  std::string name = file.string();
  name.append(".").append(std::to_string(getpid())).append(".").append(std::to_string(next++)).append(kUnfinished);
  return name;
}

}  // namespace

std::string Quoted(const std::filesystem::path& file) {
  std::string quoted(1, '\'');
  quoted.append(file.string()).append(1, '\'');
  return quoted;
}

void RemoveUnfinished(const std::filesystem::path& file) {
  const std::string begin = file.filename().string() + ".";
  // One that cannot be removed means nothing to whoever reads.
  static_cast<void>(RemoveFiles(file.parent_path(), [&begin](const std::filesystem::path& name) {
    return name.string().starts_with(begin) && name.string().ends_with(kUnfinished);
  }));
}

Result<uint32_t> ChecksumOf(const std::filesystem::path& file) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
  uint32_t checksum = 0;
  const auto bytes = std::as_writable_bytes(std::span(&checksum, 1));
  if (size < std::ssize(bytes)) return CorruptError(Quoted(file) + " is cut short");
  EVERLONG_ASSIGN_OR_RETURN(const int64_t got, ReadAt(opened, file, size - std::ssize(bytes), bytes));
  if (got != std::ssize(bytes)) return CorruptError(Quoted(file) + " is cut short");
  return checksum;
}

IndexFileWriter::IndexFileWriter(std::filesystem::path file, std::filesystem::path temporary, UniqueFd written)
    : file_(std::move(file)), temporary_(std::move(temporary)), written_(std::move(written)) {}

IndexFileWriter::~IndexFileWriter() {
  if (written_.get() >= 0) static_cast<void>(RemoveFile(temporary_));
}

Result<IndexFileWriter> IndexFileWriter::Create(const std::filesystem::path& file, std::string_view magic) {
  std::filesystem::path temporary = TemporaryOf(file);
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd created, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC));
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

Status IndexFileWriter::Commit() {
  const uint32_t crc = crc_;  // which writing changes
  WriteValue(crc);
  EVERLONG_RETURN_IF_ERROR(status_);
  EVERLONG_RETURN_IF_ERROR(SyncFile(written_, temporary_));
  EVERLONG_RETURN_IF_ERROR(RenameFile(temporary_, file_));
  written_ = UniqueFd();
  return OkStatus();
}

IndexFileReader::IndexFileReader(std::string name, void* mapping, size_t size)
    : name_(std::move(name)), mapping_(mapping), size_(size), left_(static_cast<const std::byte*>(mapping), size) {}

IndexFileReader::IndexFileReader(IndexFileReader&& other) noexcept
    : name_(std::move(other.name_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      size_(other.size_),
      left_(other.left_) {}

IndexFileReader::~IndexFileReader() {
  if (mapping_ != nullptr) munmap(mapping_, size_);
}

Status IndexFileReader::Truncated() const { return CorruptError(Quoted(name_) + " says more than it holds"); }

Result<IndexFileReader> IndexFileReader::Open(const std::filesystem::path& file, std::string_view magic) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t bytes, FileSize(opened, file));
  const auto size = static_cast<size_t>(bytes);
  void* const mapping = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.get(), 0) : nullptr;
  if (mapping == MAP_FAILED) return ErrnoError("cannot read", file, errno);
  const size_t least = magic.size() + sizeof(uint32_t);
  if (mapping == nullptr || size < least) {
    if (mapping != nullptr) munmap(mapping, size);
    return CorruptError(Quoted(file) + " has " + std::to_string(size) + " bytes, expected at least " +
                        std::to_string(least));
  }
  IndexFileReader reader(file.string(), mapping, size);
  uint32_t stored = 0;
  std::memcpy(&stored, static_cast<const std::byte*>(mapping) + size - sizeof(stored), sizeof(stored));
  reader.left_ = reader.left_.first(size - sizeof(stored));
  if (Crc32c(reader.left_) != stored) return CorruptError(Quoted(file) + ": checksum differs");
  if (std::memcmp(reader.left_.data(), magic.data(), magic.size()) != 0) {
    return CorruptError(Quoted(file) + " is of another kind");
  }
  reader.left_ = reader.left_.subspan(magic.size());
  return reader;
}

}  // namespace everlong::index
