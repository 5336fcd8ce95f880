// Allocations that fail when a test says so. A program that uses these is linked with base_allocation_failures.cc,
// whose operators new and delete take the place of the library's.
#pragma once

#include <cstdint>

namespace everlong {

enum class AllocatingThread { kCallers, kOthers };  // the one that makes the OneAllocationFails, or all others

// As long as this is there, the first `given` allocations of such threads are made, the next one fails, and all that
// follow are made.
class OneAllocationFails {
 public:
  OneAllocationFails(AllocatingThread of, int64_t given);
  explicit OneAllocationFails(int64_t given) : OneAllocationFails(AllocatingThread::kCallers, given) {}
  OneAllocationFails(const OneAllocationFails&) = delete;
  OneAllocationFails& operator=(const OneAllocationFails&) = delete;
  ~OneAllocationFails();
  // Whether it has failed.
  [[nodiscard]] bool struck() const;
};

// As long as this is there, no thread gets an array with an alignment of its own, as slabs of keys are.
class AlignedArraysFail {
 public:
  AlignedArraysFail();
  AlignedArraysFail(const AlignedArraysFail&) = delete;
  AlignedArraysFail& operator=(const AlignedArraysFail&) = delete;
  ~AlignedArraysFail();
};

}  // namespace everlong
