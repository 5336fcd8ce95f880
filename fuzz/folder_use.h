// What a user does with a memory.
#pragma once

#include <cstdint>
#include <filesystem>

#include "everlong/base/status.h"
#include "everlong/os/memory.h"

namespace everlong::fuzz {

// What is read of a memory. Opening costs little beside all of it, so most inputs ask for one thing.
enum class Asked : uint8_t {
  kAll,
  kHeads,
  kLexical,
  kMeanPool,
  kHnsw,
  kEmbedding,
  kMeaning,
  kWalk,
  kPayload,
  kBlocks,
  kGraph,
  kNothing
};
inline constexpr int kMostAsked = static_cast<int>(Asked::kNothing);

// Both return the first failure, and go on behind it.
Status Read(os::Memory& memory, Asked asked);
// Add a block, and to a block; grow the graph; save the indexes; forget a block; compact; fork and export into `made`.
Status Write(os::Memory& memory, const std::filesystem::path& made);

}  // namespace everlong::fuzz
