// Which device a thread works on, and buffers there where no other allocator gives them.
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

// Makes a device the calling thread's current one while it lives.
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

// `bytes` >= 1 of the current device, at an address divisible by 256.
LaunchStatus AllocateOnDevice(int64_t bytes, void** buffer);
// After all that the device has to do.
void FreeOnDevice(void* buffer);

}  // namespace everlong::hip
