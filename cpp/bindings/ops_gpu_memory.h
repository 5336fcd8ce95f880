// Torch's allocator as the core's on a GPU.
#pragma once

namespace everlong::ops::gpu {

// From now on (base/device_memory.h).
void UseTorchsMemory();

}  // namespace everlong::ops::gpu
