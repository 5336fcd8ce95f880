// A saved index as one file: magic, the owner's bytes, CRC-32C of both (docs/format.md, "Index files").
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/status.h"

namespace everlong::index {

// Return 'FILE', for messages.
std::string Quoted(const std::filesystem::path& file);

// Remove what a crash left of files that were written to become `file`. Nobody may be writing one now.
void RemoveUnfinished(const std::filesystem::path& file);

// Return the checksum at the end of a saved index, unchecked, to tell it from another. kNotFound, kIoError, kCorrupt.
Result<uint32_t> ChecksumOf(const std::filesystem::path& file);

// Bytes behind a saved index in the same file, which say what the index is about.
struct Appendix {
  std::vector<std::byte> bytes;
  uint32_t checksum = 0;  // the file's last bytes: of these bytes and of the index's own checksum
};
// Read and check the appendix; none when the file has none. kNotFound, kIoError, kCorrupt.
Result<std::optional<Appendix>> ReadAppendix(const std::filesystem::path& file);
// Replace `file` by the index that `save` writes into the file it is given, with `bytes` behind it. Both come in one
// rename, or the file stays as it was.
Status SaveWithAppendix(const std::filesystem::path& file,
                        const std::function<Status(const std::filesystem::path& file)>& save,
                        std::span<const std::byte> bytes);

// A writer that replaces `file` whole. It writes beside it, under a name of its own (FILE.PROCESS.NUMBER.writing).
// Commit makes that file durable and renames it. So `file` is the old one or a new one, even when several write it at
// once. The destructor removes what was not committed.
class IndexFileWriter {
 public:
  static Result<IndexFileWriter> Create(const std::filesystem::path& file, std::string_view magic);
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
  Status Commit();

 private:
  IndexFileWriter(std::filesystem::path file, std::filesystem::path temporary, UniqueFd written);

  std::filesystem::path file_;
  std::filesystem::path temporary_;
  UniqueFd written_;  // empty after the commit
  int64_t bytes_ = 0;
  uint32_t crc_ = 0;
  Status status_;
};

// A reader of a saved index, which checks the bytes before it returns any. It does not look for an appendix.
class IndexFileReader {
 public:
  // Open a file. kNotFound, kIoError; kCorrupt when the magic or the checksum is wrong.
  static Result<IndexFileReader> Open(const std::filesystem::path& file, std::string_view magic);
  // Do the same for an appendix of `file`, which was checked and must outlive the reader.
  static Result<IndexFileReader> OfAppendix(const std::filesystem::path& file, const Appendix& appendix,
                                            std::string_view magic);
  ~IndexFileReader();
  IndexFileReader(IndexFileReader&& other) noexcept;
  IndexFileReader& operator=(IndexFileReader&&) = delete;
  IndexFileReader(const IndexFileReader&) = delete;
  IndexFileReader& operator=(const IndexFileReader&) = delete;

  // Read the next values; kCorrupt when there are not so many.
  template <class T>
  Status ReadAll(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.size_bytes() > left_.size()) return Truncated();
    if (!values.empty()) std::memcpy(values.data(), left_.data(), values.size_bytes());
    left_ = left_.subspan(values.size_bytes());
    return OkStatus();
  }
  template <class T>
  Status ReadValue(T& value) {
    return ReadAll(std::span<T>(&value, 1));
  }
  [[nodiscard]] size_t left() const { return left_.size(); }
  [[nodiscard]] Status Truncated() const;

 private:
  IndexFileReader(std::string name, void* mapping, size_t size);
  Status TakeMagic(std::string_view magic);

  std::string name_;
  void* mapping_;
  size_t size_;
  std::span<const std::byte> left_;
};

}  // namespace everlong::index
