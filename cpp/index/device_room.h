// The memory that an index takes on a device: for copies that come and go one by one, and for a search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/index_device.h"

namespace everlong::index {

// Use it from one thread at a time. It takes at most `most_bytes` of the device, with the room for a search.
class DeviceRoom {
 public:
  DeviceRoom(std::shared_ptr<IndexDevice> device, int64_t most_bytes);
  DeviceRoom(const DeviceRoom&) = delete;
  DeviceRoom& operator=(const DeviceRoom&) = delete;
  ~DeviceRoom();

  [[nodiscard]] const std::shared_ptr<IndexDevice>& device() const { return device_; }
  [[nodiscard]] int64_t most_bytes() const { return most_bytes_; }
  [[nodiscard]] int64_t bytes() const;  // of the device, now

  // Copy `from`, a multiple of 16 bytes, to an address of the device divisible by 16. `coming` is how much is about to
  // come, with `from`, so that all of it is allocated at once. kCapacity, kIoError.
  Result<std::byte*> Place(std::span<const std::byte> from, int64_t coming);
  // Set what Place has put there to zeros. Its room is for another of as many bytes. kIoError.
  Status Remove(std::byte* at, int64_t bytes);

  // Return how many of a search's `blocks` of rows, at least 1, may be scanned at a time. bytes_of(n) is what n of them
  // need. kCapacity when there is no room for one.
  template <class BytesOf>
  [[nodiscard]] Result<int64_t> BlocksAPass(int64_t blocks, const BytesOf& bytes_of) const {
    const int64_t room = search_bytes();
    for (int64_t count = blocks; count > 1; count /= 2) {
      if (bytes_of(count) <= std::min(room, kPassBytes)) return count;
    }
    if (bytes_of(1) > room) return NoRoom(bytes_of(1));
    return 1;
  }
  // Return memory for a search, at an address divisible by 256, until the next call. kCapacity.
  Result<std::byte*> ForASearch(int64_t bytes);

  void GiveBack();  // all of it

 private:
  // Longer questions take several passes.
  static constexpr int64_t kPassBytes = int64_t{64} << 20;

  // Memory of the device that is freed with this object.
  class Memory {
   public:
    Memory(IndexDevice& device, std::byte* at, int64_t bytes) : at_(at, FreeOn{&device}), bytes_(bytes) {}
    [[nodiscard]] std::byte* at(int64_t offset) const { return at_.get() + offset; }
    [[nodiscard]] int64_t bytes() const { return bytes_; }

   private:
    struct FreeOn {
      IndexDevice* device;
      void operator()(std::byte* memory) const { device->Free(memory); }
    };
    std::unique_ptr<std::byte, FreeOn> at_;
    int64_t bytes_;
  };

  Result<Memory> Allocate(int64_t bytes);
  [[nodiscard]] int64_t search_bytes() const;  // what a search may have
  [[nodiscard]] Status NoRoom(int64_t search_bytes) const;

  const std::shared_ptr<IndexDevice> device_;
  const int64_t most_bytes_;
  std::vector<Memory> slabs_;
  int64_t slab_used_ = 0;                            // of the last slab
  std::map<int64_t, std::vector<std::byte*>> free_;  // by bytes: what was removed
  std::optional<Memory> search_;
};

}  // namespace everlong::index
