// What keeps a memory whole, small and safe elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

struct MemoryState;  // private

// Thread-safe: each takes a turn with every change of the memory. Searches go on, but for what Compact and Verify index
// anew.
class Upkeep {
 public:
  // Call the store's methods (everlong/store/memory_store.h). A repair indexes what is left.
  Status Flush();
  Result<int64_t> Compact();
  Result<store::VerifyReport> Verify(bool repair);
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
