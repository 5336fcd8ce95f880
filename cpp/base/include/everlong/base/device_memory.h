// A hook for the host program's allocator of GPU memory. The Python bindings point it at torch's allocator. What the
// core keeps on a GPU then shares one pool with the model, and goes back to it when torch runs short.
#pragma once

#include <cstdint>

namespace everlong {

struct DeviceMemory {
  void* at = nullptr;     // null: no memory
  void* owner = nullptr;  // the argument of `free`
};

struct DeviceMemoryHook {
  // Return `bytes` >= 1 of the device's memory, at an address divisible by 256, for work on `stream` only.
  DeviceMemory (*allocate)(int32_t device, void* stream, int64_t bytes) = nullptr;
  // Free the memory in the order of that stream: work that is enqueued on it may still use the memory.
  void (*free)(void* owner) = nullptr;
};

// Thread-safe. The hook must live to the end of the process. nullptr means the runtime's own allocator.
void SetDeviceMemoryHook(const DeviceMemoryHook* hook);
const DeviceMemoryHook* GetDeviceMemoryHook();

}  // namespace everlong
