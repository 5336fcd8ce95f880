// A copy of the keys of HeadsIndex on a device, and its searches there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "everlong/base/stable_vector.h"
#include "everlong/base/status.h"
#include "everlong/index/heads_device.h"
#include "everlong/index/page_filter.h"
#include "heads_scan.h"
#include "key_tiles.h"

namespace everlong::index {

// Thread-safe. Of the device's memory it takes `most_bytes` at most, the room for a search included. Keys are there as
// a whole or not at all: where a page does not fit, or its copy fails, all memory is given back for good.
class HeadsMirror {
 public:
  HeadsMirror(std::shared_ptr<HeadsDevice> device, int64_t most_bytes);
  HeadsMirror(const HeadsMirror&) = delete;
  HeadsMirror& operator=(const HeadsMirror&) = delete;
  ~HeadsMirror();

  // Takes in the pages of `keys` that are not here yet.
  void Follow(const KeyTiles& keys);
  // A page of `keys`, which has it still, is zeros from now on; its room is for other pages.
  void Forget(const KeyTiles& keys, int32_t page);

  // The mass of `scored` pages of `keys`, as HeadsIndex::Mass has it: [scored]; none when it is for the host to scan.
  // sinks [pages of keys].
  [[nodiscard]] std::optional<std::vector<float>> Mass(const KeyTiles& keys, std::span<const RowBlock> blocks,
                                                       const PagePositions& scored, const StableVector<int32_t>& sinks);

  [[nodiscard]] const std::shared_ptr<HeadsDevice>& device() const { return device_; }
  [[nodiscard]] int64_t most_bytes() const { return most_bytes_; }
  [[nodiscard]] int64_t bytes() const;  // of the device, now
  [[nodiscard]] int64_t scans() const;  // how many times Mass had an answer
  // Why the host was left to scan since it was asked last; ok if it was not.
  [[nodiscard]] Status TakeFailure();

 private:
  // Memory of the device that goes back to it.
  class Memory {
   public:
    Memory(HeadsDevice& device, std::byte* at, int64_t bytes) : at_(at, FreeOn{&device}), bytes_(bytes) {}
    [[nodiscard]] std::byte* at(int64_t offset) const { return at_.get() + offset; }
    [[nodiscard]] int64_t bytes() const { return bytes_; }

   private:
    struct FreeOn {
      HeadsDevice* device;
      void operator()(std::byte* memory) const { device->Free(memory); }
    };
    std::unique_ptr<std::byte, FreeOn> at_;
    int64_t bytes_;
  };

  // All of these under the lock.
  [[nodiscard]] int64_t Held() const;
  Result<Memory> Allocate(int64_t bytes);
  Status TakeIn(const KeyTiles& keys);
  Status AddMass(const KeyTiles& keys, std::span<const RowBlock> blocks, const PagePositions& scored,
                 const StableVector<int32_t>& sinks, std::span<float> mass);
  Status AddMassOfPass(const KeyTiles& keys, std::span<const RowBlock> pass, std::span<const HeadsPage> pages,
                       std::span<float> mass);
  void GiveUp();

  const std::shared_ptr<HeadsDevice> device_;
  const int64_t most_bytes_;
  mutable std::mutex mutex_;
  std::vector<Memory> slabs_;
  int64_t slab_used_ = 0;                           // of the last slab
  std::vector<uint32_t*> pages_;                    // where each begins; nullptr for an empty one
  std::map<int64_t, std::vector<uint32_t*>> free_;  // by bytes: what forgotten pages took
  std::optional<Memory> workspace_;
  bool given_up_ = false;
  int64_t scans_ = 0;
  Status failure_;
};

}  // namespace everlong::index
