// A device, such as a GPU, on which an index can scan instead of on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/index/heads_job.h"
#include "everlong/index/meaning_job.h"

namespace everlong::index {

// The memory of one device, and the scans on it. Calls come one at a time, from any thread. A failed call leaves the
// device as it was. The index then scans on the host.
class IndexDevice {
 public:
  IndexDevice() = default;
  IndexDevice(const IndexDevice&) = delete;
  IndexDevice& operator=(const IndexDevice&) = delete;
  virtual ~IndexDevice() = default;

  // Allocate `bytes` >= 1 of the device, at an address divisible by 256. The caller owns it until Free. kCapacity.
  virtual Result<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;  // after all work that was enqueued

  // Copy bytes of the host into the device's memory. `from` may change once the call returns. kIoError.
  virtual Status Upload(std::byte* to, std::span<const std::byte> from) = 0;

  // Run the job after all uploads before it, wait for it, and copy its masses to mass [job.page_count]. kIoError with
  // the device's reason; `mass` is then unspecified.
  virtual Status Scan(const HeadsJob& job, std::span<float> mass) = 0;
  // Do the same for its scores, to scores [job.page_count].
  virtual Status Scan(const MeaningJob& job, std::span<MeaningScore> scores) = 0;
};

}  // namespace everlong::index
