// A saved index as one file: magic, the owner's bytes, CRC-32C of both (docs/format.md, "Index files").
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/file.h"
#include "everlong/base/file_mapping.h"
#include "everlong/base/status.h"

namespace everlong::index {

// Return 'FILE', for messages.
std::string Quoted(const FilePath& file);

// Return another name each time, for a file that is written to become `file` by a rename.
FilePath TemporaryOf(const FilePath& file);
// Remove what a crash left of files that were written to become `file`. Nobody may be writing one now.
void RemoveUnfinished(const FilePath& file);

// Return the checksum at the end of a saved index, unchecked, to tell it from another. kNotFound, kIoError, kCorrupt.
Result<uint32_t> ChecksumOf(const FilePath& file);

// Bytes behind a saved index in the same file, which say what the index is about.
struct Appendix {
  std::vector<std::byte> bytes;
  uint32_t checksum = 0;  // the file's last bytes: of these bytes and of the index's own checksum
};
// Read and check the appendix; none when the file has none. kNotFound, kIoError, kCorrupt.
Result<std::optional<Appendix>> ReadAppendix(const FilePath& file);

// Read all of a saved index and its appendix, and check them against their checksums. kNotFound, kIoError, kCorrupt.
Status CheckIndexFile(const FilePath& file);

// Where an index is saved, and what goes behind it in the same file.
struct IndexFile {
  template <std::convertible_to<FilePath> Path>
  // NOLINTNEXTLINE(google-explicit-constructor): a path alone is a file without an appendix
  IndexFile(const Path& file, std::optional<std::span<const std::byte>> behind = std::nullopt)
      : path(file), appendix(behind) {}

  FilePath path;
  std::optional<std::span<const std::byte>> appendix;
};

// A writer that replaces a file whole, with its appendix. It writes beside it, under a name of its own
// (FILE.PROCESS.NUMBER.writing). Commit makes that file durable and renames it. So the file is the old one or a new
// one, even when several write it at once. The destructor removes what was not committed. One thread uses it.
class IndexFileWriter {
 public:
  // The appendix outlives the writer.
  static Result<IndexFileWriter> Create(const IndexFile& file, std::string_view magic);
  ~IndexFileWriter();
  IndexFileWriter(IndexFileWriter&& other) = default;
  IndexFileWriter& operator=(IndexFileWriter&&) = delete;
  IndexFileWriter(const IndexFileWriter&) = delete;
  IndexFileWriter& operator=(const IndexFileWriter&) = delete;

  // Write bytes. Commit returns a failure.
  void Write(std::span<const std::byte> bytes);
  template <class T>
  void WriteAll(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Write(std::as_bytes(values));
  }
  template <class T>
  void WriteValue(const T& value) {
    WriteAll(std::span<const T>(&value, 1));
  }
  // Write zeros up to the next multiple of `bytes` from the beginning of the file.
  void Align(int64_t bytes);
  // Write the CRC-32C of all that was written so far, for IndexFileReader::CheckSoFar.
  void WriteChecksumSoFar() { WriteValue(uint32_t{crc_}); }
  Status Commit();

 private:
  IndexFileWriter(IndexFile file, FilePath temporary, UniqueFd written);
  void WriteAppendix(std::span<const std::byte> bytes, uint32_t own);

  IndexFile file_;
  FilePath temporary_;
  UniqueFd written_;  // empty after the commit
  int64_t bytes_ = 0;
  uint32_t crc_ = 0;
  Status status_;
};

// A saved index in the address space of this process. Its bytes may be anything: they are checked when Check is called.
class MappedIndexFile {
 public:
  MappedIndexFile(FilePath name, FileMapping mapping, size_t checked_bytes)
      : name_(std::move(name)), mapping_(std::move(mapping)), checked_bytes_(checked_bytes) {}

  [[nodiscard]] const FileMapping& mapping() const { return mapping_; }
  // Read all of the index, and return kCorrupt unless it matches its checksum.
  [[nodiscard]] Status Check() const;

 private:
  FilePath name_;
  FileMapping mapping_;
  size_t checked_bytes_;  // of the index, in front of its checksum
};

// The bytes of a saved index. It knows nothing of an appendix. The file is mapped (base/file_mapping.h), so what is
// large need not be copied. One thread uses it.
class IndexFileReader {
 public:
  // Check all before anything is taken. kNotFound, kIoError; kCorrupt when magic or checksum are not right.
  static Result<IndexFileReader> Open(const FilePath& file, std::string_view magic);
  // Do the same without a look at what is not taken. The caller takes what says how the rest lies, and calls
  // CheckSoFar before it uses that. Any bytes of the rest are safe to use; MappedIndexFile::Check reads all of them.
  static Result<IndexFileReader> OpenUnchecked(const FilePath& file, std::string_view magic);
  // The same of an appendix of `file`, which outlives it and was checked.
  static Result<IndexFileReader> OfAppendix(const FilePath& file, const Appendix& appendix, std::string_view magic);

  // Read the next values; kCorrupt when there are not so many.
  template <class T>
  Status ReadAll(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Take(std::as_writable_bytes(values));
  }
  template <class T>
  Status ReadValue(T& value) {
    return ReadAll(std::span<T>(&value, 1));
  }
  // Take a checksum of IndexFileWriter::WriteChecksumSoFar; kCorrupt unless all bytes before it match.
  Status CheckSoFar();
  // Skip to the next multiple of `bytes` from the beginning of the file, as IndexFileWriter::Align; kCorrupt.
  Status Align(int64_t bytes);
  // Return the next `count` values where they are mapped, not of an appendix; kCorrupt. They begin at an address that
  // fits T, and are there as long as what TakeMapping returns.
  template <class T>
  Result<std::span<const T>> ReadMapped(size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > left() / sizeof(T)) return Truncated();
    const std::byte* const values = bytes_.data() + at_;
    EVERLONG_CHECK(reinterpret_cast<uintptr_t>(values) % alignof(T) == 0);
    at_ += static_cast<int64_t>(count * sizeof(T));
    return std::span(reinterpret_cast<const T*>(values), count);
  }
  // Return the mapping itself. Nothing is read after that.
  [[nodiscard]] MappedIndexFile TakeMapping() { return {name_, std::move(mapping_), bytes_.size()}; }
  [[nodiscard]] size_t left() const { return static_cast<size_t>(std::ssize(bytes_) - at_); }
  [[nodiscard]] Status Truncated() const;
  // Return kCorrupt that names the file.
  [[nodiscard]] Status Corrupt(const char* what) const { return CorruptError(Quoted(name_) + ": " + what); }

 private:
  explicit IndexFileReader(FilePath name) : name_(std::move(name)) {}
  static Result<IndexFileReader> Map(const FilePath& file, size_t least_bytes);
  Status Take(std::span<std::byte> out);
  Status TakeMagic(std::string_view magic);

  FilePath name_;
  FileMapping mapping_;               // none of an appendix
  std::span<const std::byte> bytes_;  // the index's own, without the checksum
  int64_t at_ = 0;                    // of what comes next
};

}  // namespace everlong::index
