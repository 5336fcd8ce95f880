#include "core_gpu_index.h"

#include <map>
#include <string>

#include "../../hip/copy.h"
#include "../../hip/heads_kernels.h"
#include "../../hip/meaning_kernels.h"
#include "../../hip/on_device.h"
#include "../../hip/side_stream.h"
#include "core_gpu_error.h"
#include "everlong/base/device_memory.h"

namespace everlong::bindings {
namespace {

class GpuIndexDevice : public index::IndexDevice {
 public:
  GpuIndexDevice(int32_t device, void* stream) : device_(device), stream_(stream) {}
  ~GpuIndexDevice() override { hip::DestroySideStream(device_, stream_); }

  Result<std::byte*> Allocate(int64_t bytes) override {
    if (const DeviceMemoryHook* hook = GetDeviceMemoryHook(); hook != nullptr) {
      const DeviceMemory memory = hook->allocate(device_, stream_, bytes);
      if (memory.at == nullptr) {
        return CapacityError("cuda:" + std::to_string(device_) + ": no memory (" + std::to_string(bytes) + " bytes)");
      }
      auto* const at = static_cast<std::byte*>(memory.at);
      hooked_.emplace(at, Hooked{hook, memory.owner});
      return at;
    }
    void* buffer = nullptr;
    const hip::LaunchStatus status = Here([&] { return hip::AllocateOnDevice(bytes, &buffer); });
    if (status == 0) return static_cast<std::byte*>(buffer);
    return CapacityError(GpuError(device_, "memory", status).message() + " (" + std::to_string(bytes) + " bytes)");
  }
  void Free(std::byte* buffer) override {
    if (const auto found = hooked_.find(buffer); found != hooked_.end()) {
      found->second.hook->free(found->second.owner);
      hooked_.erase(found);
      return;
    }
    const hip::OnDevice current(device_);
    hip::FreeOnDevice(buffer);
  }

  Status Upload(std::byte* to, std::span<const std::byte> from) override {
    return Done("copy", Here([&] { return hip::CopyToDevice(to, from.data(), std::ssize(from), stream_); }));
  }

  Status Scan(const index::HeadsJob& job, std::span<float> mass) override {
    EVERLONG_RETURN_IF_ERROR(Done("heads scan", Here([&] { return hip::ScanHeads(job, stream_); })));
    const auto bytes = std::ssize(std::as_bytes(mass));
    return Done("heads scan", Here([&] { return hip::CopyToHost(mass.data(), job.mass, bytes, stream_); }));
  }

  Status Scan(const index::MeaningJob& job, std::span<index::MeaningScore> scores) override {
    EVERLONG_RETURN_IF_ERROR(Done("meaning scan", Here([&] { return hip::ScanMeaning(job, stream_); })));
    const auto bytes = std::ssize(std::as_bytes(scores));
    return Done("meaning scan", Here([&] { return hip::CopyToHost(scores.data(), job.scores, bytes, stream_); }));
  }

 private:
  // Run call() with the device current.
  template <class Call>
  [[nodiscard]] hip::LaunchStatus Here(const Call& call) const {
    const hip::OnDevice current(device_);
    return current.status() != 0 ? current.status() : call();
  }
  [[nodiscard]] Status Done(const char* what, hip::LaunchStatus status) const {
    return status == 0 ? OkStatus() : GpuError(device_, what, status);
  }

  struct Hooked {
    const DeviceMemoryHook* hook;
    void* owner;
  };

  const int32_t device_;
  void* const stream_;
  std::map<std::byte*, Hooked> hooked_;  // memory of the host program's allocator
};

}  // namespace

Result<std::unique_ptr<index::IndexDevice>> MakeGpuIndexDevice(int32_t device) {
  void* stream = nullptr;
  const hip::LaunchStatus status = hip::CreateSideStream(device, &stream);
  if (status != 0) return GpuError(device, "side stream", status);
  return std::unique_ptr<index::IndexDevice>(std::make_unique<GpuIndexDevice>(device, stream));
}

}  // namespace everlong::bindings
