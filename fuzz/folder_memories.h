// Good memories, one of every kind that a folder can hold.
#pragma once

#include <string>
#include <vector>

#include "everlong/store/memory_store.h"
#include "folder_tree.h"

namespace everlong::fuzz {

struct GoodMemory {
  std::string name;
  Files files;
};

// With keys and values in each codec; of text alone; of format 1 (tests/data/schema1, looked for from the current
// folder). Those of this format have a graph with topics, tensors of blocks, files of their own, a forgotten block and
// saved indexes. Made at the first call.
const std::vector<GoodMemory>& GoodMemories();

// Small enough that a memory has several segments, and no cache that a folder of some kilobytes needs.
store::StoreOptions SmallOptions();

// What these memories were made with. Vectors are the same wherever they are asked for.
inline constexpr int32_t kPageTokens = 4;
inline constexpr int32_t kWidth = 5;  // of vectors of pages, and of meaning
inline constexpr const char* kEncoder = "encoder";
inline constexpr const char* kPack = "pack";
// Numbers from -1.5 to 1.5; no two rows of a few are alike.
std::vector<float> Numbers(size_t count, size_t from = 0);

}  // namespace everlong::fuzz
