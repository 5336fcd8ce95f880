#include "everlong/base/device_memory.h"

#include <atomic>

namespace everlong {
namespace {

std::atomic<const DeviceMemoryHook*> g_hook{nullptr};

}  // namespace

void SetDeviceMemoryHook(const DeviceMemoryHook* hook) { g_hook.store(hook, std::memory_order_release); }

const DeviceMemoryHook* GetDeviceMemoryHook() { return g_hook.load(std::memory_order_acquire); }

}  // namespace everlong
