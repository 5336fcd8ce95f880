#include <gtest/gtest.h>

#include "everlong/base/device_memory.h"

namespace everlong {
namespace {

TEST(DeviceMemory, TheHookIsTheHostProgramsOrNone) {
  static constexpr DeviceMemoryHook kHook{[](int32_t device, void* stream, int64_t bytes) {
                                            return DeviceMemory{bytes > 100 ? nullptr : stream,
                                                                device == 3 ? stream : nullptr};
                                          },
                                          [](void* owner) { ++*static_cast<int*>(owner); }};
  EXPECT_EQ(GetDeviceMemoryHook(), nullptr);
  SetDeviceMemoryHook(&kHook);
  int stream = 0;
  const DeviceMemory memory = GetDeviceMemoryHook()->allocate(3, &stream, 100);
  EXPECT_EQ(memory.at, &stream);
  GetDeviceMemoryHook()->free(memory.owner);
  EXPECT_EQ(stream, 1);
  EXPECT_EQ(GetDeviceMemoryHook()->allocate(3, &stream, 101).at, nullptr);
  SetDeviceMemoryHook(nullptr);
  EXPECT_EQ(GetDeviceMemoryHook(), nullptr);
}

}  // namespace
}  // namespace everlong
