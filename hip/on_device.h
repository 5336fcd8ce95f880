// The device that a thread works on, and buffers there for callers without an allocator of their own.
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

// Makes a device the calling thread's current one while this object lives.
class OnDevice {
 public:
  explicit OnDevice(int32_t device);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

  [[nodiscard]] LaunchStatus status() const { return status_; }

 private:
  int device_;
  int before_ = 0;
  LaunchStatus status_ = 0;
};

// Allocate `bytes` >= 1 of the current device, at an address divisible by 256.
LaunchStatus AllocateOnDevice(int64_t bytes, void** buffer);
// Free a buffer after all work of the device.
void FreeOnDevice(void* buffer);

}  // namespace everlong::hip
