// A copy of the keys of HeadsIndex on a device, and the searches there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device_room.h"
#include "everlong/base/stable_vector.h"
#include "everlong/base/status.h"
#include "everlong/index/index_device.h"
#include "everlong/index/page_filter.h"
#include "heads_scan.h"
#include "key_tiles.h"

namespace everlong::index {

// Thread-safe. It takes at most `most_bytes` of the device's memory, with the room for a search. The keys are there as
// a whole or not at all: where a page does not fit, or its copy fails, all memory is freed for good.
class HeadsMirror {
 public:
  HeadsMirror(std::shared_ptr<IndexDevice> device, int64_t most_bytes);
  HeadsMirror(const HeadsMirror&) = delete;
  HeadsMirror& operator=(const HeadsMirror&) = delete;
  ~HeadsMirror();

  // Take in the pages of `keys` that are not here yet.
  void Follow(const KeyTiles& keys);
  // Set a page of `keys`, which still has it, to zeros. Its room is for other pages.
  void Forget(const KeyTiles& keys, int32_t page);

  // Return the mass [scored] of `scored` pages of `keys`, as HeadsIndex::Mass; none if the host must scan. sinks
  // [pages].
  [[nodiscard]] std::optional<std::vector<float>> Mass(const KeyTiles& keys, std::span<const RowBlock> blocks,
                                                       const PagePositions& scored, const StableVector<int32_t>& sinks);

  [[nodiscard]] const std::shared_ptr<IndexDevice>& device() const { return room_.device(); }
  [[nodiscard]] int64_t most_bytes() const { return room_.most_bytes(); }
  [[nodiscard]] int64_t bytes() const;  // of the device, now
  [[nodiscard]] int64_t scans() const;  // how many times Mass had an answer
  // Return why the host had to scan since the last call; ok if it did not.
  [[nodiscard]] Status TakeFailure();

 private:
  // Call these under the lock.
  Status TakeIn(const KeyTiles& keys);
  Status AddMass(const KeyTiles& keys, std::span<const RowBlock> blocks, const PagePositions& scored,
                 const StableVector<int32_t>& sinks, std::span<float> mass);
  Status AddMassOfPass(const KeyTiles& keys, std::span<const RowBlock> pass, std::span<const HeadsPage> pages,
                       std::byte* workspace, std::span<float> mass);
  void GiveUp();

  mutable std::mutex mutex_;
  DeviceRoom room_;
  std::vector<std::byte*> pages_;  // where each begins; nullptr for an empty one
  bool given_up_ = false;
  int64_t scans_ = 0;
  Status failure_;
};

}  // namespace everlong::index
