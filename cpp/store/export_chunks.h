// Chunks of an exported memory (docs/format.md, "Export"). Each has a checksum.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/status.h"

namespace everlong::store {

enum class Chunk : uint32_t {
  kManifest = 1,
  kBlock = 2,
  kKv = 3,
  kTensors = 4,
  kEnd = 5,
  kFile = 6,
  kNode = 7,
  kEdge = 8
};

// Write values of a chunk's body, one behind the other, little-endian.
class Packer {
 public:
  template <class T>
  Packer& Number(T value) {
    static_assert(sizeof(T) == 8);
    return Rest(std::as_bytes(std::span(&value, 1)));
  }
  // An enum or a shorter integer, as int64.
  template <class T>
  Packer& Int(T value) {
    return Number(static_cast<int64_t>(value));
  }
  Packer& Bytes(std::span<const std::byte> bytes) { return Int(bytes.size()).Rest(bytes); }
  Packer& Rest(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Packer& Text(std::string_view text) { return Bytes(std::as_bytes(std::span(text.data(), text.size()))); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Read them from any bytes. What is not there reads as 0 or empty, and `whole` then says so.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T Number() {
    static_assert(sizeof(T) == 8);
    T value{};
    const std::span<const std::byte> bytes = Take(sizeof value);
    if (whole_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  // What Packer::Int wrote. A number that does not fit is not there.
  template <class T>
  T Int() {
    const auto number = Number<int64_t>();
    const auto value = static_cast<T>(number);
    whole_ = whole_ && static_cast<int64_t>(value) == number;
    return value;
  }
  std::span<const std::byte> Bytes() {
    const auto length = Number<int64_t>();
    return Take(length < 0 ? rest_.size() + 1 : static_cast<size_t>(length));
  }
  template <class T>
  std::vector<T> Numbers() {
    const std::span<const std::byte> bytes = Bytes();
    whole_ = whole_ && bytes.size() % sizeof(T) == 0;
    std::vector<T> numbers(whole_ ? bytes.size() / sizeof(T) : 0);
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  std::string Text() {
    const std::span<const std::byte> bytes = Bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> Rest() { return Take(rest_.size()); }
  [[nodiscard]] bool whole() const { return whole_; }
  // Return whether all was taken, and all was there.
  [[nodiscard]] bool finished() const { return whole_ && rest_.empty(); }

 private:
  std::span<const std::byte> Take(size_t count) {
    whole_ = whole_ && count <= rest_.size();
    if (!whole_) return {};
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
  bool whole_ = true;
};

// Writes a new file. Nobody takes a file without its end for an exported memory.
class ExportWriter {
 public:
  // kAlreadyExists when there is a file of that name.
  static Result<ExportWriter> Create(const std::filesystem::path& path);
  Status Write(Chunk type, std::span<const std::byte> body);
  // Make the file durable.
  Status Finish();

 private:
  ExportWriter(UniqueFd file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}

  UniqueFd file_;
  std::filesystem::path path_;
  int64_t end_ = 0;
};

// Reads any file.
class ExportReader {
 public:
  struct Piece {
    Chunk type = Chunk::kEnd;
    std::vector<std::byte> body;
  };

  // kCorrupt, kNewerFormat.
  static Result<ExportReader> Begin(const std::filesystem::path& path);
  Result<Piece> Next();
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] bool finished() const { return at_ == size_; }
  [[nodiscard]] Status Corrupt(const std::string& what) const;

 private:
  ExportReader(UniqueFd file, std::filesystem::path path, int64_t size)
      : file_(std::move(file)), path_(std::move(path)), size_(size) {}

  UniqueFd file_;
  std::filesystem::path path_;
  int64_t size_;
  int64_t at_ = 0;
  uint32_t version_ = 0;
};

}  // namespace everlong::store
