// Saved indexes as the files that they are (docs/format.md, "Index files"), whole and as older releases wrote them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "everlong/base/crc32c.h"

namespace everlong::os {

inline std::string BytesOf(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void PutBytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

constexpr size_t kTail = 32;

// Where the list begins in the bytes of a saved index.
inline size_t ListBegin(const std::string& bytes) {
  int64_t begin = 0;
  std::memcpy(&begin, bytes.data() + bytes.size() - kTail, sizeof begin);
  return static_cast<size_t>(begin);
}

// Bytes with the CRC-32C of those from `first` on in the place of the last four.
inline std::string WithChecksum(std::string bytes, size_t first) {
  const size_t body = bytes.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).subspan(first, body - first));
  std::memcpy(bytes.data() + body, &crc, sizeof crc);
  return bytes;
}

// What `folder`/NAME carries becomes a file of its own beside it, NAME.blocks.
inline void MakeOlderPair(const std::filesystem::path& folder, const std::string& name) {
  const std::string bytes = BytesOf(folder / name);
  const size_t begin = ListBegin(bytes);
  const std::string carried = bytes.substr(begin, bytes.size() - kTail - begin);
  // The first version has no checksum of a block's token ids, the last of its numbers.
  uint32_t settings = 0;
  int64_t blocks = 0;
  std::memcpy(&settings, carried.data() + 28, sizeof settings);
  std::memcpy(&blocks, carried.data() + 32, sizeof blocks);
  std::string list = "everlong index blocks 1\n" + carried.substr(24, 16 + settings);
  for (int64_t block = 0; block < blocks; ++block) {
    list += carried.substr(40 + settings + static_cast<size_t>(block) * 56, 48);
  }
  std::memcpy(list.data() + 24, bytes.data() + begin - sizeof(uint32_t), sizeof(uint32_t));  // behind the line
  PutBytes(folder / name, bytes.substr(0, begin));
  PutBytes(folder / (name + ".blocks"), WithChecksum(list + "0000", 0));
}

}  // namespace everlong::os
