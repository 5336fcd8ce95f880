// Memories that the last release of format 1 wrote (tests/data/schema1), and what they answered it.
#pragma once

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "store_fixture.h"

namespace everlong::store {

inline constexpr std::array kOldMemories = {"kv", "text"};

inline std::filesystem::path OldFile(const std::string& name) {
  return std::filesystem::path(EVERLONG_TEST_DATA) / "schema1" / name;
}

inline void Shell(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

// The memory as `folder`, which lies in a folder that exists.
inline void UnpackOld(const std::string& name, const std::filesystem::path& folder) {
  const std::filesystem::path root = folder.parent_path();
  Shell("tar -xzf '" + OldFile(name + ".tar.gz").string() + "' -C '" + root.string() + "'");
  std::filesystem::rename(root / name, folder);
}

// The checksum of zlib, which the recorded answers have.
inline uint32_t Crc32(std::span<const std::byte> bytes) {
  uint32_t crc = ~0U;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ (0xEDB88320U & (0U - (crc & 1U)));
  }
  return ~crc;
}

template <class T>
std::vector<T> Counting(T first, size_t count) {
  std::vector<T> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

template <class T>
void ExpectTensor(const MemoryStore& store, int64_t block, const std::string& name, const std::string& dtype,
                  const std::vector<int64_t>& shape, const std::vector<T>& numbers) {
  const Result<Tensor> tensor = store.ReadTensor(block, name);
  ASSERT_OK(tensor.status());
  EXPECT_EQ(tensor->dtype, dtype);
  EXPECT_EQ(tensor->shape, shape);
  EXPECT_TRUE(std::ranges::equal(tensor->bytes, std::as_bytes(std::span(numbers)))) << name;
}

// The store answers what the old release said, of its blocks and files.
inline void ExpectAnswers(const MemoryStore& store, const std::string& name) {
  const auto answers = nlohmann::json::parse(ReadFile(OldFile(name + ".json")));
  const Result<std::vector<BlockInfo>> infos = store.Blocks();
  ASSERT_OK(infos.status());
  ASSERT_EQ(infos->size(), answers["blocks"].size());
  const int32_t layers = store.manifest().geometry.layers;
  for (size_t i = 0; i < infos->size(); ++i) {
    const BlockInfo& info = (*infos)[i];
    const auto& block = answers["blocks"][i];
    EXPECT_EQ(info.id, block["id"]);
    EXPECT_EQ(info.stream, block["stream"]);
    EXPECT_EQ(info.span.begin, block["span"][0]);
    EXPECT_EQ(info.span.end, block["span"][1]);
    EXPECT_EQ(info.sink_tokens, block["sink_tokens"]);
    EXPECT_EQ(info.source, block["source"]);
    EXPECT_EQ(info.role, Role::kRead);
    EXPECT_EQ(info.created_at, block["created_at"]);
    EXPECT_EQ(info.tags, block["tags"].get<std::vector<std::string>>());
    EXPECT_EQ(info.pages, layers > 0 ? block["pages"].get<int32_t>() : 0);
    EXPECT_EQ(info.payload_bytes, block["payload_bytes"]);
    const Result<std::vector<int32_t>> ids = store.TokenIds(info.id);
    ASSERT_OK(ids.status());
    EXPECT_EQ(*ids, block["token_ids"].get<std::vector<int32_t>>());
    // [T, K and V, Hkv, D] of bfloat16 a page and layer.
    std::vector<std::byte> payload(static_cast<size_t>(info.payload_bytes));
    std::vector<PageRead> reads;
    size_t at = 0;
    for (int32_t page = 0; page < info.pages; ++page) {
      const Geometry& geometry = store.manifest().geometry;
      const int64_t tokens =
          std::min<int64_t>(geometry.page_tokens, info.span.size() - int64_t{page} * geometry.page_tokens);
      const auto bytes = static_cast<size_t>(layers * 2 * geometry.kv_heads * tokens * geometry.head_dim * 2);
      reads.push_back({info.id, page, 0, layers, std::span(payload).subspan(at, bytes)});
      at += bytes;
    }
    ASSERT_OK(store.ReadPages(reads));
    EXPECT_EQ(Crc32(payload), block["payload_crc32"]);
  }
  EXPECT_EQ(store.manifest().attributes, (answers["attributes"].get<std::map<std::string, std::string>>()));
  EXPECT_EQ(Crc32(store.File("frame").value()), answers["file_crc32"]);
  for (const int64_t gone : {3, 6}) EXPECT_EQ(store.Block(gone).status().code(), StatusCode::kNotFound);
  if (name == "text") return;
  std::vector<std::string> names;
  for (const BlockInfo& info : *infos) {
    const Result<std::vector<TensorInfo>> tensors = store.Tensors(info.id);
    ASSERT_OK(tensors.status());
    for (const TensorInfo& tensor : *tensors) names.push_back(std::to_string(info.id) + " " + tensor.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"1 detail/layer.0", "1 detail/layer.1", "1 detail/none", "1 text/ids",
                                             "4 index/ids"}));
  ExpectTensor(store, 1, "detail/layer.0", "F32", {2, 3}, Counting(0.5F, 6));
  ExpectTensor(store, 1, "detail/layer.1", "F32", {2, 3}, Counting(30.5F, 6));
  ExpectTensor(store, 1, "detail/none", "BF16", {0, 4}, Counting(0.0F, 0));
  ExpectTensor(store, 1, "text/ids", "I32", {18}, Counting(100, 18));
  ExpectTensor(store, 4, "index/ids", "F32", {1, 36}, Counting(0.5F, 36));
}

}  // namespace everlong::store
