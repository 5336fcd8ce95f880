// A copy of the keys of HeadsIndex on a device, and the searches there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device_mirror.h"
#include "everlong/base/stable_vector.h"
#include "everlong/base/status.h"
#include "everlong/index/page_filter.h"
#include "heads_scan.h"
#include "key_tiles.h"

namespace everlong::index {

class HeadsMirror : public DeviceMirror {
 public:
  using DeviceMirror::DeviceMirror;

  // Take in the pages of `keys` that are not here yet.
  void Follow(const KeyTiles& keys);
  // Set a page of `keys`, which still has it, to zeros. Its room is for other pages.
  void Forget(const KeyTiles& keys, int32_t page);

  // Return the mass [scored] of `scored` pages of `keys`, as HeadsIndex::Scored; none if the host must scan. sinks
  // [pages].
  [[nodiscard]] std::optional<std::vector<float>> Mass(const KeyTiles& keys, std::span<const RowBlock> blocks,
                                                       const PagePositions& scored, const StableVector<int32_t>& sinks);

 private:
  // Call these under the lock.
  Status TakeIn(const KeyTiles& keys);
  Status AddMass(const KeyTiles& keys, std::span<const RowBlock> blocks, const PagePositions& scored,
                 const StableVector<int32_t>& sinks, std::span<float> mass);
  Status AddMassOfPass(const KeyTiles& keys, std::span<const RowBlock> pass, std::span<const HeadsPage> pages,
                       std::byte* workspace, std::span<float> mass);
  void GiveUp(Status why);

  std::vector<std::byte*> pages_;  // where each begins; nullptr for an empty one
};

}  // namespace everlong::index
