// GGUF files as they should be, cut short at every byte, and made to harm.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/weights/gguf_file.h"

namespace everlong::weights {
namespace {

constexpr uint32_t kUint32 = 4, kFloat32 = 6, kString = 8, kArray = 9, kUint64 = 10;
constexpr uint32_t kQ8 = 8, kUnknownFormat = 200;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

// The bytes of a file, one behind the other.
struct Bytes {
  std::string text;

  template <class T>
  Bytes& Number(T number) {
    static_assert(std::is_arithmetic_v<T>);
    text.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  Bytes& Text(const std::string& value) {
    Number<uint64_t>(value.size());
    text += value;
    return *this;
  }
  Bytes& Tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    Text(name).Number(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) Number(size);
    return Number(type).Number(offset);
  }
  // Add zeros up to the next multiple.
  Bytes& Align(size_t multiple) {
    text.append((multiple - text.size() % multiple) % multiple, '\0');
    return *this;
  }
};

Bytes Beginning(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
  Bytes bytes;
  bytes.text = "GGUF";
  return bytes.Number(version).Number(tensors).Number(entries);
}

class Gguf : public testing::Test {
 protected:
  Result<GgufFile> Read(const Bytes& bytes) {
    const std::filesystem::path path = folder_.path() / "model.gguf";
    std::ofstream(path, std::ios::binary) << bytes.text;
    return ReadGguf(FilePath(path));
  }
  [[nodiscard]] std::filesystem::path folder() const { return folder_.path(); }
  void ExpectCorrupt(const Bytes& bytes, const std::string& words) {
    const Result<GgufFile> file = Read(bytes);
    ASSERT_FALSE(file.ok()) << words;
    EXPECT_EQ(file.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(file.status().message().find(words), std::string::npos) << file.status().message();
    EXPECT_NE(file.status().message().find("model.gguf"), std::string::npos);
  }

 private:
  TemporaryFolder folder_;
};

// A file of one matrix of 2 rows of 64 in Q8_0, and one of a format of the future.
Bytes Whole() {
  Bytes bytes = Beginning(2, 3);
  bytes.Text("general.architecture").Number(kString).Text("llama");
  bytes.Text("general.alignment").Number(kUint32).Number<uint32_t>(64);
  bytes.Text("words").Number(kArray).Number(kString).Number<uint64_t>(2).Text("a").Text("bc");
  bytes.Tensor("w.weight", {64, 2}, kQ8, 0).Tensor("of.future", {3}, kUnknownFormat, 192);
  bytes.Align(64);
  bytes.text.append(2 * 2 * 34 + 64, '\1');
  return bytes;
}

TEST_F(Gguf, AWholeFileIsReadAsItIs) {
  const Bytes bytes = Whole();
  const Result<GgufFile> file = Read(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->metadata.size(), 3U);
  EXPECT_EQ(file->metadata[0].key, "general.architecture");
  EXPECT_EQ(std::get<std::vector<std::string>>(file->metadata[0].values), std::vector<std::string>{"llama"});
  EXPECT_EQ(std::get<std::vector<int64_t>>(file->metadata[1].values), std::vector<int64_t>{64});
  EXPECT_TRUE(file->metadata[2].is_array);
  EXPECT_EQ(std::get<std::vector<std::string>>(file->metadata[2].values), (std::vector<std::string>{"a", "bc"}));
  ASSERT_EQ(file->tensors.size(), 2U);
  EXPECT_EQ(file->tensors[0].shape, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(file->tensors[0].offset, file->data_offset);
  EXPECT_EQ(file->tensors[0].bytes, 2 * 2 * 34);
  EXPECT_EQ(file->data_offset % 64, 0);
  EXPECT_EQ(file->tensors[1].bytes, -1);
  EXPECT_EQ(file->tensors[1].offset, file->data_offset + 192);
}

TEST_F(Gguf, AFileCutShortAnywhereIsCorrupt) {
  const Bytes whole = Whole();
  for (size_t length = 0; length + 64 < whole.text.size(); ++length) {
    Bytes part;
    part.text = whole.text.substr(0, length);
    const Result<GgufFile> file = Read(part);
    ASSERT_FALSE(file.ok()) << length;
    EXPECT_EQ(file.status().code(), StatusCode::kCorrupt);
  }
}

TEST_F(Gguf, ChangedBytesAreReadOrCorrupt) {
  std::mt19937 random(1);
  for (int32_t i = 0; i < 500; ++i) {
    Bytes bytes = Whole();
    for (int32_t change = 0; change < 3; ++change) {
      bytes.text[random() % bytes.text.size()] = static_cast<char>(random());
    }
    const Result<GgufFile> file = Read(bytes);
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), StatusCode::kCorrupt);
      continue;
    }
    for (const GgufTensor& tensor : file->tensors) {
      EXPECT_GE(tensor.offset, file->data_offset);
      const int64_t end = tensor.offset + std::max<int64_t>(tensor.bytes, 0);
      EXPECT_LE(end, static_cast<int64_t>(bytes.text.size()));
    }
  }
}

TEST_F(Gguf, SizesAreNotBelieved) {
  ExpectCorrupt(Beginning(0, kHuge), "entries of metadata");
  ExpectCorrupt(Beginning(kHuge, 0), "tensors");
  ExpectCorrupt(Beginning(0, 1).Number(kHuge), "it ends before");
  ExpectCorrupt(Beginning(0, 1).Text("a").Number(kArray).Number(kUint32).Number(kHuge), "values of an array");
  ExpectCorrupt(Beginning(0, 1).Text("a").Number(kArray).Number(kString).Number(kHuge / 8), "values of an array");
  ExpectCorrupt(Beginning(0, 1).Text("a").Number(kArray).Number(kArray).Number<uint64_t>(1), "of the type 9");
  ExpectCorrupt(Beginning(0, 1).Text("a").Number(kUint64).Number(kHuge), "2^63 or more");
  ExpectCorrupt(Beginning(0, 1).Text("a").Number<uint32_t>(77).Number(kHuge), "of the type 77");
}

TEST_F(Gguf, TensorsMustLieInTheFile) {
  const auto with = [](const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    Bytes bytes = Beginning(1, 0).Tensor("w", sizes, type, offset).Align(32);
    bytes.text.append(68, '\0');
    return bytes;
  };
  EXPECT_TRUE(Read(with({64}, kQ8, 0)).ok());
  ExpectCorrupt(with({64}, kQ8, 1), "it ends before its tensor w");
  ExpectCorrupt(with({64}, kQ8, kHuge), "begins at");
  ExpectCorrupt(with({64}, kQ8, kHuge / 2), "it ends before its tensor w");
  ExpectCorrupt(with({64, kHuge / 64}, kQ8, 0), "a size of");
  ExpectCorrupt(with({64, kHuge / 256}, kQ8, 0), "it ends before its tensor w");
  ExpectCorrupt(with({64, uint64_t{1} << 56}, kQ8, 0), "it ends before its tensor w");
  ExpectCorrupt(with({64, kHuge / 128}, kQ8, 0), "more bytes than");
  ExpectCorrupt(with({65}, kQ8, 0), "no whole blocks");
  ExpectCorrupt(with({0}, kQ8, 0), "a size of 0");
  ExpectCorrupt(with({}, kQ8, 0), "0 dimensions");
  ExpectCorrupt(with({1, 1, 1, 1, 1}, kQ8, 0), "5 dimensions");
}

TEST_F(Gguf, WhatIsNoGgufIsCorrupt) {
  Bytes other;
  other.text = "PK\3\4 and more";
  ExpectCorrupt(other, "does not begin with GGUF");
  ExpectCorrupt(Beginning(0, 0, 1), "its version is 1");
  ExpectCorrupt(Beginning(0, 0, 0x03000000), "little-endian");
  ExpectCorrupt(Beginning(0, 1).Text("general.alignment").Number(kUint32).Number<uint32_t>(0), "no power of two");
  EXPECT_EQ(ReadGguf(FilePath("/no/such/model.gguf")).status().code(), StatusCode::kNotFound);
}

TEST_F(Gguf, AnAlignmentIsAPowerOfTwoOf32Bits) {
  const auto with = [](uint32_t type, auto number) {
    return Beginning(0, 1).Text("general.alignment").Number(type).Number(number).Align(64);
  };
  for (const uint32_t alignment : {1, 8, 32, 64}) EXPECT_TRUE(Read(with(kUint32, alignment)).ok()) << alignment;
  for (const uint32_t alignment : {0U, 3U, 48U, (1U << 20) + 1, 1U << 21, 1U << 31}) {
    ExpectCorrupt(with(kUint32, alignment), "no power of two");
  }
  ExpectCorrupt(with(kFloat32, 32.0F), "no power of two");
  ExpectCorrupt(with(kUint64, uint64_t{32}), "no power of two");
  ExpectCorrupt(Beginning(0, 1).Text("general.alignment").Number(kString).Text("32"), "no power of two");
  ExpectCorrupt(Beginning(0, 1).Text("general.alignment").Number(kArray).Number(kUint32).Number<uint64_t>(0),
                "no power of two");
}

TEST_F(Gguf, NothingIsThereTwice) {
  const auto key = [](Bytes bytes, const std::string& name, uint32_t value) {
    return bytes.Text(name).Number(kUint32).Number(value);
  };
  ExpectCorrupt(key(key(Beginning(0, 2), "a.b", 1), "a.b", 1), "the key a.b twice");
  ExpectCorrupt(key(Beginning(0, 1), "", 1), "a name at offset 24 has 0 bytes");
  ExpectCorrupt(key(Beginning(0, 1), std::string(65536, 'a'), 1), "has 65536 bytes");
  EXPECT_TRUE(Read(key(Beginning(0, 1), std::string(65535, 'a'), 1).Align(32)).ok());
  ExpectCorrupt(Beginning(2, 0).Tensor("w", {1}, kUnknownFormat, 0).Tensor("w", {1}, kUnknownFormat, 32).Align(32),
                "two tensors w");
  ExpectCorrupt(Beginning(1, 0).Tensor("", {1}, kUnknownFormat, 0).Align(32), "has 0 bytes");
}

TEST_F(Gguf, TensorsHaveAPlaceOfTheirOwn) {
  const auto with = [](uint64_t first, uint64_t second, uint32_t type = kQ8) {
    Bytes bytes = Beginning(2, 0).Tensor("v", {64}, type, first).Tensor("w", {64}, kQ8, second).Align(32);
    bytes.text.append(256, '\0');
    return bytes;
  };
  EXPECT_TRUE(Read(with(0, 96)).ok());
  EXPECT_TRUE(Read(with(96, 0)).ok());
  EXPECT_TRUE(Read(with(0, 32, kUnknownFormat)).ok());
  ExpectCorrupt(with(0, 64), "its tensors v and w overlap");
  ExpectCorrupt(with(64, 0), "its tensors w and v overlap");
  ExpectCorrupt(with(0, 0), "overlap");
  ExpectCorrupt(with(0, 0, kUnknownFormat), "overlap");
  ExpectCorrupt(with(0, 97), "its tensor w begins at 97 of its data, expected a multiple of 32");
}

TEST_F(Gguf, WhatIsClaimedIsBounded) {
  Bytes values = Beginning(0, 1).Text("a").Number(kArray).Number(kString).Number<uint64_t>((1 << 22) + 1);
  values.text.append(40 << 20, '\0');
  ExpectCorrupt(values, "more than 4194304 values");
  Bytes entries = Beginning(0, 65537);
  Bytes tensors = Beginning(65537, 0);
  ExpectCorrupt(entries, "65537 entries of metadata");
  ExpectCorrupt(tensors, "65537 tensors");
  const std::filesystem::path path = folder() / "model.gguf";
  std::ofstream(path, std::ios::binary) << Beginning(0, 1).Text("a").Number(kString).Number<uint64_t>(65 << 20).text;
  std::filesystem::resize_file(path, uint64_t{1} << 40);  // a hole
  EXPECT_EQ(ReadGguf(FilePath(path)).status().code(), StatusCode::kCorrupt);
}

TEST_F(Gguf, APathThatIsNoFileIsRefusedAtOnce) {
  const std::filesystem::path pipe = folder() / "pipe.gguf";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {pipe, folder(), std::filesystem::path("/dev/zero")}) {
    const Result<GgufFile> file = ReadGguf(FilePath(path));
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.status().code(), StatusCode::kCorrupt) << path;
    EXPECT_NE(file.status().message().find("is no file"), std::string::npos) << file.status().message();
  }
}

}  // namespace
}  // namespace everlong::weights
