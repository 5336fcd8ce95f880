// Where searches of an index may scan instead of the host: a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/index/heads_job.h"
#include "everlong/index/meaning_job.h"

namespace everlong::index {

// Memory of one device, and the scans there. Calls come one at a time, from any thread. What fails leaves the device as
// it was; the index then scans on the host.
class IndexDevice {
 public:
  IndexDevice() = default;
  IndexDevice(const IndexDevice&) = delete;
  IndexDevice& operator=(const IndexDevice&) = delete;
  virtual ~IndexDevice() = default;

  // `bytes` >= 1 of the device, at an address divisible by 256; the caller's until Free. kCapacity when there is none.
  virtual Result<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;  // after all that was enqueued

  // Bytes of the host into memory of the device. `from` may change as soon as the call returns. kIoError.
  virtual Status Upload(std::byte* to, std::span<const std::byte> from) = 0;

  // The job after all uploads before it; waits for it and copies its masses to mass [job.page_count]. kIoError with the
  // device's reason; `mass` is then unspecified.
  virtual Status Scan(const HeadsJob& job, std::span<float> mass) = 0;
  // The same of its scores, to scores [job.page_count].
  virtual Status Scan(const MeaningJob& job, std::span<MeaningScore> scores) = 0;
};

}  // namespace everlong::index
