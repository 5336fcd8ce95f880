// What copies of an index on a device have in common: their room there, whether they are given up, and what they did.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device_room.h"
#include "everlong/base/status.h"
#include "everlong/index/index_device.h"
#include "everlong/index/part.h"

namespace everlong::index {

// Thread-safe. It takes at most `most_bytes` of the device's memory, with the room for a search. The copies are there
// as a whole or not at all: where one does not fit, or copying fails, all memory is freed for good.
class DeviceMirror {
 public:
  DeviceMirror(std::shared_ptr<IndexDevice> device, int64_t most_bytes) : room_(std::move(device), most_bytes) {}

  [[nodiscard]] const std::shared_ptr<IndexDevice>& device() const { return room_.device(); }
  [[nodiscard]] int64_t most_bytes() const { return room_.most_bytes(); }
  // Return the bytes of the device now, and how many searches had an answer.
  [[nodiscard]] DeviceUse use() const {
    const std::scoped_lock lock(mutex_);
    return {room_.bytes(), scans_};
  }
  // Return why the host had to scan since the last call; ok if it did not.
  [[nodiscard]] Status TakeFailure() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(failure_, OkStatus());
  }

 protected:
  // Call it under the lock.
  void GiveUp(Status why) {
    failure_ = std::move(why);
    given_up_ = true;
    room_.GiveBack();
  }

  mutable std::mutex mutex_;
  DeviceRoom room_;
  bool given_up_ = false;
  int64_t scans_ = 0;
  Status failure_;
};

// Return what Part::TakeMessages says of such a failure.
inline std::vector<std::string> MessagesOf(const Status& failure, std::string_view searched) {
  if (failure.ok()) return {};
  std::string message(searched);
  return {message.append(" are searched on the host (").append(failure.message()).append(")")};
}

}  // namespace everlong::index
