// What keeps a memory whole, small and safe elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

struct MemoryState;  // private

// Thread-safe: each takes a turn with every change of the memory, but Verify and Export only to flush it and to repair.
// Searches go on, but for what Compact and a repair index anew.
class Upkeep {
 public:
  // Call the store's methods (everlong/store/memory_store.h). A repair indexes what is left.
  // Return once every block that was appended before is durable. It waits for the commit that is under way and the one
  // behind it. Other threads append and flush meanwhile, and all of their blocks that are waiting then share that one
  // commit. A block that was lost is the error of every thread that waited for it.
  Status Flush();
  Result<int64_t> Compact();
  // Code the payload of a block anew, durable on return: all of it, or none where the process dies. Return the bytes
  // that the payload had; 0 where it has that codec already, or no payload. They are given back by Compact. What the
  // index knows of the block stays, until it is made again from the payload. kNotFound; kInvalidArgument for a codec
  // that is none, or that cannot hold a number of the block; kCorrupt.
  Result<int64_t> Recode(int64_t block, std::string_view codec);
  // Keep the tables of a transform with the memory. Return the name of their codec, for Recode; the attribute
  // "transform" says it, too. kCorrupt for bytes that are no tables; kModelMismatch for those of another model.
  Result<std::string> PutTransform(std::span<const std::byte> file);
  // MemoryStore::Verify, and the saved indexes. `repair` removes what is damaged of these, and makes it anew.
  Result<store::VerifyReport> Verify(bool repair);
  // For a memory that is open for reading: bring the index to what the catalog has by now, where another process forgot
  // blocks that the index has. It is loaded again then. A writer's index always knows.
  Status HearForgettings();
  // Call the store's methods, with the saved indexes.
  Status Fork(const std::filesystem::path& folder);
  Status Export(const std::filesystem::path& file);
  [[nodiscard]] Result<store::StoreStats> Stats() const;

 private:
  friend class Memory;
  explicit Upkeep(MemoryState& state) : state_(state) {}

  MemoryState& state_;  // of the memory, which outlives this
};

}  // namespace everlong::os
