#include "everlong/index/index_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "everlong/base/crc32c.h"

namespace everlong::index {
namespace {

Status SystemError(std::string_view action, const std::filesystem::path& path) {
  const int number = errno;
  const std::error_code error(number, std::generic_category());
  std::string message(action);
  message.append(" ").append(Quoted(path)).append(": ").append(error.message());
  return number == ENOENT ? NotFoundError(std::move(message)) : IoError(std::move(message));
}

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr std::string_view kUnfinished = ".writing";

std::filesystem::path TemporaryOf(const std::filesystem::path& file) {
  static std::atomic<uint64_t> next = 0;
  std::string name = file.string();
  name.append(".").append(std::to_string(getpid())).append(".").append(std::to_string(next++)).append(kUnfinished);
  return name;
}

std::filesystem::path FolderOf(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// Makes the name of `file` durable.
Status SyncFolderOf(const std::filesystem::path& file) {
  const std::filesystem::path folder = FolderOf(file);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("could not open", folder);
  const bool synced = fsync(fd) == 0;
  const Status status = synced ? OkStatus() : SystemError("could not sync", folder);
  close(fd);
  return status;
}

}  // namespace

std::string Quoted(const std::filesystem::path& file) {
  std::string quoted(1, '\'');
  quoted.append(file.string()).append(1, '\'');
  return quoted;
}

void RemoveUnfinished(const std::filesystem::path& file) {
  const std::string begin = file.filename().string() + ".";
  std::error_code error;
  std::vector<std::filesystem::path> unfinished;
  std::filesystem::directory_iterator entry(FolderOf(file), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(begin) && name.ends_with(kUnfinished)) unfinished.push_back(entry->path());
  }
  for (const std::filesystem::path& path : unfinished) std::filesystem::remove(path, error);
}

Result<uint32_t> ChecksumOf(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("could not open", file);
  uint32_t checksum = 0;
  const off_t end = lseek(fd, 0, SEEK_END);
  const ssize_t got =
      end < off_t{sizeof(checksum)} ? 0 : pread(fd, &checksum, sizeof(checksum), end - off_t{sizeof(checksum)});
  close(fd);
  if (got < 0) return SystemError("could not read", file);
  if (got != sizeof(checksum)) return CorruptError(Quoted(file) + " is cut short");
  return checksum;
}

IndexFileWriter::IndexFileWriter(std::filesystem::path file, std::filesystem::path temporary, int fd)
    : file_(std::move(file)), temporary_(std::move(temporary)), fd_(fd) {}

IndexFileWriter::IndexFileWriter(IndexFileWriter&& other) noexcept
    : file_(std::move(other.file_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      crc_(other.crc_),
      status_(std::move(other.status_)) {}

IndexFileWriter::~IndexFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Result<IndexFileWriter> IndexFileWriter::Create(const std::filesystem::path& file, std::string_view magic) {
  std::filesystem::path temporary = TemporaryOf(file);
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("could not create", temporary);
  IndexFileWriter writer(file, std::move(temporary), fd);
  writer.Write(AsBytes(magic));
  return writer;
}

void IndexFileWriter::Write(std::span<const std::byte> bytes) {
  crc_ = Crc32c(bytes, crc_);
  while (status_.ok() && !bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      status_ = SystemError("could not write", temporary_);
    }
  }
}

Status IndexFileWriter::Commit() {
  WriteValue(uint32_t{crc_});
  EVERLONG_RETURN_IF_ERROR(status_);
  if (fsync(fd_) != 0) return SystemError("could not sync", temporary_);
  if (rename(temporary_.c_str(), file_.c_str()) != 0) return SystemError("could not rename", temporary_);
  close(std::exchange(fd_, -1));
  return SyncFolderOf(file_);
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
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("could not open", file);
  struct stat about{};
  const bool known = fstat(fd, &about) == 0;
  const auto size = known ? static_cast<size_t>(about.st_size) : 0;
  void* const mapping = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  close(fd);
  if (mapping == MAP_FAILED || !known) return SystemError("could not read", file);
  const size_t least = magic.size() + sizeof(uint32_t);
  if (size < least) {
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
