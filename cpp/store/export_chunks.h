// Chunks of an exported memory (docs/format.md, "Export"). Each has a checksum.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/sqlite.h"
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

// Write values of a chunk's body, one behind the other, little-endian: numbers in 8 bytes, texts and vectors of numbers
// with their length in bytes before them.
class Packer {
 public:
  template <class... Values>
  Packer& Add(const Values&... values) {
    (AddOne(ColumnValue(values)), ...);
    return *this;
  }
  // Bytes without their length, up to the end of the body.
  Packer& Rest(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void AddOne(int64_t value) { Rest(std::as_bytes(std::span(&value, 1))); }
  void AddOne(double value) { Rest(std::as_bytes(std::span(&value, 1))); }
  void AddOne(std::string_view text) { AddOne(std::as_bytes(std::span(text.data(), text.size()))); }
  void AddOne(std::span<const std::byte> bytes) {
    AddOne(std::ssize(bytes));
    Rest(bytes);
  }

  std::vector<std::byte> bytes_;
};

// Read them from any bytes. What is not there, or does not fit, reads as 0 or empty, and `whole` then says so.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class... Values>
  Unpacker& Take(Values&... values) {
    (TakeOne(values), ...);
    return *this;
  }
  std::span<const std::byte> Rest() { return Next(rest_.size()); }
  [[nodiscard]] bool whole() const { return whole_; }
  // Return whether all was taken, and all was there.
  [[nodiscard]] bool finished() const { return whole_ && rest_.empty(); }

 private:
  template <class Value>
  void TakeOne(Value& value) {
    if constexpr (std::is_same_v<Value, int64_t> || std::is_same_v<Value, double>) {
      const std::span<const std::byte> bytes = Next(sizeof value);
      if (whole_) std::memcpy(&value, bytes.data(), sizeof value);
    } else if constexpr (std::is_enum_v<Value> || std::is_integral_v<Value>) {
      int64_t number = 0;
      TakeOne(number);
      value = static_cast<Value>(number);
      whole_ = whole_ && static_cast<int64_t>(value) == number;
    } else {
      constexpr size_t kEach = sizeof(typename Value::value_type);
      int64_t length = 0;
      TakeOne(length);
      const std::span<const std::byte> bytes = Next(length < 0 ? rest_.size() + 1 : static_cast<size_t>(length));
      whole_ = whole_ && bytes.size() % kEach == 0;
      value.resize(whole_ ? bytes.size() / kEach : 0);
      if (!value.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
    }
  }
  std::span<const std::byte> Next(size_t count) {
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
