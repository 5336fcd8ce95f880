// The host program's allocator of a GPU's memory, as a hook: the Python bindings point it at torch's, so that what the
// core keeps on a GPU comes out of one pool with the model's, and goes back to it when torch runs short.
#pragma once

#include <cstdint>

namespace everlong {

struct DeviceMemory {
  void* at = nullptr;     // null: there is none
  void* owner = nullptr;  // what Free takes
};

struct DeviceMemoryHook {
  // `bytes` >= 1 of the device, at an address divisible by 256, for work on `stream` alone.
  DeviceMemory (*allocate)(int32_t device, void* stream, int64_t bytes) = nullptr;
  // In the order of that stream: its work that is enqueued may still use the memory.
  void (*free)(void* owner) = nullptr;
};

// Thread-safe. The hook lives to the end of the process; nullptr: the runtime's own allocator.
void SetDeviceMemoryHook(const DeviceMemoryHook* hook);
const DeviceMemoryHook* GetDeviceMemoryHook();

}  // namespace everlong
