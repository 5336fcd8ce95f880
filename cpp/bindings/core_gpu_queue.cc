#include "core_gpu_queue.h"

#include "core_gpu_runtime.h"
#include "everlong/kv/stream_runtime.h"

namespace everlong::bindings {

Result<std::unique_ptr<kv::CopyQueue>> MakeGpuCopyQueue(int32_t device) {
  return kv::MakeStreamCopyQueue(std::make_shared<GpuStreamRuntime>(device));
}

}  // namespace everlong::bindings
