#include "everlong/index/index_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"

namespace everlong::index {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr std::string_view kUnfinished = ".writing";

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
  // A file that cannot be removed does no harm to readers.
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

Result<std::optional<Appendix>> ReadAppendix(const std::filesystem::path& file) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(file, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, file));
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

Status SaveWithAppendix(const std::filesystem::path& file,
                        const std::function<Status(const std::filesystem::path& file)>& save,
                        std::span<const std::byte> bytes) {
  const std::filesystem::path temporary = TemporaryOf(file);
  const auto append = [&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(save(temporary));
    EVERLONG_ASSIGN_OR_RETURN(const uint32_t own, ChecksumOf(temporary));
    EVERLONG_ASSIGN_OR_RETURN(const UniqueFd opened, OpenFile(temporary, O_WRONLY));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, temporary));
    Tail tail{size, kTailMagic, 0};
    tail.checksum = Crc32c(Checked(tail), Crc32c(bytes, Crc32c(std::as_bytes(std::span(&own, 1)))));
    const std::array pieces = {bytes, std::as_bytes(std::span(&tail, 1))};
    EVERLONG_RETURN_IF_ERROR(WriteAt(opened, temporary, size, pieces));
    EVERLONG_RETURN_IF_ERROR(SyncFile(opened, temporary));
    return RenameFile(temporary, file);
  };
  Status saved = append();
  if (!saved.ok()) static_cast<void>(RemoveFile(temporary));
  return saved;
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

Status IndexFileReader::Truncated() const {
  return CorruptError(Quoted(name_) + " has fewer bytes than its header says");
}

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
  if (size >= sizeof(Tail)) {
    Tail tail;
    std::memcpy(&tail, reader.left_.last(sizeof tail).data(), sizeof tail);
    reader.left_ = reader.left_.first(static_cast<size_t>(IndexBytes(tail, bytes)));
  }
  if (reader.left_.size() < least) return reader.Truncated();
  uint32_t stored = 0;
  std::memcpy(&stored, reader.left_.last(sizeof stored).data(), sizeof stored);
  reader.left_ = reader.left_.first(reader.left_.size() - sizeof stored);
  if (Crc32c(reader.left_) != stored) return CorruptError(Quoted(file) + ": checksum differs");
  EVERLONG_RETURN_IF_ERROR(reader.TakeMagic(magic));
  return reader;
}

Result<IndexFileReader> IndexFileReader::OfAppendix(const std::filesystem::path& file, const Appendix& appendix,
                                                    std::string_view magic) {
  IndexFileReader reader(file.string(), nullptr, 0);
  reader.left_ = appendix.bytes;
  EVERLONG_RETURN_IF_ERROR(reader.TakeMagic(magic));
  return reader;
}

Status IndexFileReader::TakeMagic(std::string_view magic) {
  if (left_.size() < magic.size() || std::memcmp(left_.data(), magic.data(), magic.size()) != 0) {
    return CorruptError(Quoted(name_) + " is of another kind");
  }
  left_ = left_.subspan(magic.size());
  return OkStatus();
}

}  // namespace everlong::index
