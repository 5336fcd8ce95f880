// Blocks with vectors of the part "meaning", and what a memory finds by them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "everlong/index/meaning.h"
#include "os_memory_blocks.h"

namespace everlong::os {

inline constexpr int32_t kWidth = 12;
inline constexpr int32_t kGroup = 2;
inline const MeaningOptions kOptions{"pack-1", kWidth, kGroup};
inline const std::string kTensor = index::MeaningTensor(kOptions.pack);

// The vectors of a block, and a tensor that is theirs.
struct Vectors {
  std::vector<int8_t> codes;
  std::vector<int64_t> shape;

  [[nodiscard]] store::TensorView View(const std::string& name = kTensor) const {
    return {name, "I8", shape, std::as_bytes(std::span(codes))};
  }
};

inline Vectors RandomVectors(std::mt19937_64& random, const Block& block) {
  Vectors vectors;
  vectors.shape = {index::MeaningVectorsOf(block.span.size(), kPageTokens, kGroup), kWidth};
  vectors.codes.resize(static_cast<size_t>(vectors.shape[0] * kWidth));
  for (int8_t& code : vectors.codes) code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  return vectors;
}

struct Library {
  std::vector<Block> blocks;
  std::map<int64_t, Vectors> vectors;  // by block; of those that have them
};

inline Library RandomLibrary(uint64_t seed, int count) {
  Library library;
  std::mt19937_64 random(seed);
  std::map<int64_t, int64_t> ends;
  for (int i = 0; i < count; ++i) {
    const auto stream = static_cast<int64_t>(random() % 3);
    const auto tokens = static_cast<int64_t>(1 + random() % 14);
    Block block = RandomBlock(random, stream, ends[stream], tokens, stream == 2 ? "letters" : "book");
    ends[stream] += tokens;
    block.id = i + 1;
    library.vectors[block.id] = RandomVectors(random, block);
    library.blocks.push_back(std::move(block));
  }
  return library;
}

inline void AppendTo(Memory& memory, const Block& block, const Vectors* vectors) {
  const std::vector<std::byte> payload = block.Payload();
  store::BlockDraft draft = DraftOf(block);
  draft.payload = payload;
  std::vector<store::TensorView> tensors;
  if (vectors != nullptr) tensors.push_back(vectors->View());
  draft.tensors = tensors;
  const auto id = memory.blocks().Append(draft);
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  ASSERT_EQ(*id, block.id);
}

inline void AppendAll(Memory& memory, const Library& library) {
  for (const Block& block : library.blocks) {
    const auto vectors = library.vectors.find(block.id);
    AppendTo(memory, block, vectors == library.vectors.end() ? nullptr : &vectors->second);
  }
  ASSERT_TRUE(memory.upkeep().Flush().ok());
}

inline Result<SearchResult> Ask(const Memory& memory, const std::vector<float>& rows) {
  SearchRequest request;
  request.inputs["meaning_query"].numbers = rows;
  request.kinds = {IndexPart::kMeaning};
  request.neighbours = 0;
  request.max_groups = 1000;
  request.token_budget = 1'000'000;
  request.least_share = 0;
  return memory.search().Find(request);
}

// The question that a vector of a page answers best: itself.
inline std::vector<float> RowsFor(const Vectors& vectors, int64_t vector) {
  const auto first = vectors.codes.begin() + vector * kWidth;
  return {first, first + kWidth};
}

// Every block that has vectors is found by them, pages of sinks alone apart; and no other block is found.
inline void ExpectFound(const Memory& memory, const Library& library) {
  std::vector<int64_t> without;
  for (const Block& block : library.blocks) {
    if (!library.vectors.contains(block.id)) without.push_back(block.id);
  }
  EXPECT_EQ(memory.index().BlocksWithout(IndexPart::kMeaning), without);
  for (const Block& block : library.blocks) {
    const auto vectors = library.vectors.find(block.id);
    if (vectors == library.vectors.end()) continue;
    const std::vector<PageRef> pages = block.Pages();
    const auto last = static_cast<int64_t>(pages.size()) - 1;
    const PageRef& page = pages[static_cast<size_t>(last)];
    if (page.span.size() == page.sink_tokens) continue;
    const auto found = Ask(memory, RowsFor(vectors->second, vectors->second.shape[0] - 1));
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    ASSERT_FALSE(found->groups.empty());
    // Its cosine is 1; what stands beside it may share the group.
    const FoundGroup& best = found->groups[0];
    EXPECT_NE(std::ranges::find(best.pages, page), best.pages.end()) << block.id;
    for (const FoundGroup& group : found->groups) {
      EXPECT_EQ(group.found_by, IndexParts({IndexPart::kMeaning}));
      for (const PageRef& ref : group.pages) EXPECT_TRUE(library.vectors.contains(ref.block));
    }
  }
}

inline void Drop(Library& library, const std::vector<int64_t>& ids) {
  std::erase_if(library.blocks, [&](const Block& block) { return std::ranges::count(ids, block.id) > 0; });
  for (const int64_t id : ids) library.vectors.erase(id);
}

}  // namespace everlong::os
