// Torch's allocator as the core's allocator on a GPU.
#pragma once

namespace everlong::ops::gpu {

// Use it from now on (base/device_memory.h).
void UseTorchsMemory();

}  // namespace everlong::ops::gpu
