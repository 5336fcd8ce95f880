// What a user does with a memory.
#pragma once

#include <cstdint>
#include <filesystem>

#include "everlong/base/status.h"
#include "everlong/os/memory.h"

namespace everlong::fuzz {

// What is asked of a memory. Opening it costs little beside all of this, so most inputs ask for one thing.
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
  kExport,
  kFork,
  kNothing
};
inline constexpr int kMostAsked = static_cast<int>(Asked::kNothing);
inline bool Wants(Asked asked, Asked one) { return asked == Asked::kAll || asked == one; }

// Both return the first failure, and go on behind it.
Status Read(os::Memory& memory, Asked asked);
// Add a block, and to a block; grow the graph; save the indexes; forget a block; compact; fork and export into `made`.
Status Write(os::Memory& memory, Asked asked, const std::filesystem::path& made);

}  // namespace everlong::fuzz
