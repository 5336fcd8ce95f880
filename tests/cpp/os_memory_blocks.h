// Memories of a small shape filled with random blocks that the tests know in plain vectors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/os/memory.h"

namespace everlong::os {

using index::IndexPart;
using index::IndexParts;

inline constexpr int32_t kLayers = 2;
inline constexpr int32_t kKvHeads = 2;
inline constexpr int32_t kDim = 8;
inline constexpr int32_t kPageTokens = 4;

inline store::Manifest TestManifest(const std::string& codec = "fp32") {
  store::Manifest manifest;
  manifest.fingerprint = {"weights", "rope", "tokenizer"};
  manifest.geometry = {kLayers, kKvHeads, kDim, kPageTokens, codec};
  return manifest;
}

// One archived block as the test knows it: what was put in, in plain vectors.
struct Block {
  int64_t id = 0;
  int64_t stream = 0;
  TokenSpan span;
  int32_t sink_tokens = 0;
  std::string source;
  Role role = Role::kRead;
  double created_at = 1000.5;
  std::vector<std::string> tags{"a", "b"};
  std::vector<int32_t> ids;
  std::vector<float> keys;    // [layers, Hkv, tokens, D]
  std::vector<float> values;  // the same

  [[nodiscard]] const float* Key(int32_t layer, int32_t head, int64_t token) const {
    return &keys[static_cast<size_t>(((layer * kKvHeads + head) * span.size() + token) * kDim)];
  }

  // The bytes of kv/payload.h for codec fp32, written from its definition.
  [[nodiscard]] std::vector<std::byte> Payload() const {
    std::vector<float> floats;
    for (int64_t page = 0; page < span.size(); page += kPageTokens) {
      const int64_t end = std::min(page + kPageTokens, span.size());
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (const std::vector<float>* tensor : {&keys, &values}) {
          for (int32_t head = 0; head < kKvHeads; ++head) {
            const auto rows = (layer * kKvHeads + head) * span.size();
            floats.insert(floats.end(), tensor->begin() + (rows + page) * kDim, tensor->begin() + (rows + end) * kDim);
          }
        }
      }
    }
    std::vector<std::byte> bytes(floats.size() * sizeof(float));
    std::memcpy(bytes.data(), floats.data(), bytes.size());
    return bytes;
  }

  [[nodiscard]] std::vector<PageRef> Pages() const {
    std::vector<PageRef> pages;
    for (int64_t first = 0; first < span.size(); first += kPageTokens) {
      pages.push_back({id,
                       static_cast<int32_t>(first / kPageTokens),
                       stream,
                       {span.begin + first, std::min(span.begin + first + kPageTokens, span.end)},
                       static_cast<int32_t>(std::clamp<int64_t>(sink_tokens - first, 0, kPageTokens))});
    }
    return pages;
  }
};

inline Block RandomBlock(std::mt19937_64& random, int64_t stream, int64_t begin, int64_t tokens,
                         std::string source = "") {
  Block block;
  block.stream = stream;
  block.span = {begin, begin + tokens};
  block.sink_tokens = static_cast<int32_t>(std::clamp<int64_t>(3 - begin, 0, tokens));
  block.source = std::move(source);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  for (int64_t t = 0; t < tokens; ++t) block.ids.push_back(static_cast<int32_t>(random() % 50));
  for (int64_t row = 0; row < kLayers * kKvHeads * tokens; ++row) {
    // Keys of one length: the query that is a key's multiple scores highest at that key.
    std::array<float, kDim> key;
    float squares = 0;
    for (float& x : key) {
      x = normal(random);
      squares += x * x;
      block.values.push_back(normal(random));
    }
    for (const float x : key) block.keys.push_back(5 * x / std::sqrt(squares));
  }
  return block;
}

// Without its payload. Refers to `block`.
inline store::BlockDraft DraftOf(const Block& block) {
  store::BlockDraft draft;
  draft.stream = block.stream;
  draft.span = block.span;
  draft.sink_tokens = block.sink_tokens;
  draft.source = block.source;
  draft.created_at = block.created_at;
  draft.tags = block.tags;
  draft.token_ids = block.ids;
  draft.role = block.role;
  return draft;
}

inline Result<int64_t> Append(Memory& memory, const Block& block) {
  const std::vector<std::byte> payload = block.Payload();
  store::BlockDraft draft = DraftOf(block);
  draft.payload = payload;
  return memory.blocks().Append(draft);
}

inline const std::vector<index::RetrievalHead> kHeads{{1, 3, 1}, {0, 0, 0}, {1, 2, 1}};

struct Filled {
  std::unique_ptr<Memory> memory;
  std::vector<Block> blocks;
};

// Blocks of 1 to 14 tokens over three streams of two sources.
inline Filled Fill(std::unique_ptr<Memory> memory, uint64_t seed, int count) {
  Filled filled{std::move(memory), {}};
  std::mt19937_64 random(seed);
  std::map<int64_t, int64_t> ends;
  for (int i = 0; i < count; ++i) {
    const auto stream = static_cast<int64_t>(random() % 3);
    const auto tokens = static_cast<int64_t>(1 + random() % 14);
    Block block = RandomBlock(random, stream, ends[stream], tokens, stream == 2 ? "letters" : "book");
    ends[stream] += tokens;
    const auto id = Append(*filled.memory, block);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    block.id = *id;
    filled.blocks.push_back(std::move(block));
  }
  EXPECT_TRUE(filled.memory->upkeep().Flush().ok());
  return filled;
}

inline Filled FilledInRam(uint64_t seed, int count = 20) {
  return Fill(Memory::Create(std::nullopt, TestManifest()).value(), seed, count);
}

// A question whose queries are the keys of one token, times `sharpness`, for every retrieval head.
struct Question {
  std::vector<int32_t> ids;
  std::vector<float> head_queries;

  [[nodiscard]] SearchRequest Request() const {
    SearchRequest request;
    request.token_ids = ids;
    request.inputs["head_queries"].numbers = head_queries;
    return request;
  }
};

inline Question QuestionFor(const Block& block, int64_t token, float sharpness) {
  Question question{{block.ids[static_cast<size_t>(token)]}, {}};
  for (const index::RetrievalHead& head : kHeads) {
    const float* key = block.Key(head.layer, head.kv_head, token);
    for (int32_t d = 0; d < kDim; ++d) question.head_queries.push_back(sharpness * key[d]);
  }
  return question;
}

inline void ExpectSame(const SearchResult& a, const SearchResult& b) {
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (size_t i = 0; i < a.groups.size(); ++i) {
    EXPECT_EQ(a.groups[i].pages, b.groups[i].pages);
    EXPECT_EQ(a.groups[i].span, b.groups[i].span);
    EXPECT_EQ(a.groups[i].source, b.groups[i].source);
    EXPECT_EQ(a.groups[i].score, b.groups[i].score);
    EXPECT_EQ(a.groups[i].found_by, b.groups[i].found_by);
    EXPECT_EQ(a.groups[i].confidence, b.groups[i].confidence);
  }
  EXPECT_EQ(a.top_mass, b.top_mass);
  EXPECT_EQ(a.decisiveness, b.decisiveness);
  EXPECT_EQ(a.confidence, b.confidence);
}

}  // namespace everlong::os
