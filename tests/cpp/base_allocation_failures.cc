#include "base_allocation_failures.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace everlong {
namespace {

std::atomic<int64_t> g_given = -1;  // allocations that are still made before one is not; -1: all
std::atomic<AllocatingThread> g_of = AllocatingThread::kCallers;
thread_local bool g_is_callers = false;
std::atomic<bool> g_no_aligned_arrays = false;

bool Fails() {
  if (g_given.load(std::memory_order_relaxed) < 0) return false;
  if (g_is_callers != (g_of == AllocatingThread::kCallers)) return false;
  return g_given.fetch_sub(1) == 0;
}

void* Allocate(std::size_t bytes) noexcept { return Fails() ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1)); }

void* Allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  const auto multiple = static_cast<std::size_t>(alignment);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + multiple - 1) / multiple * multiple;
  return Fails() ? nullptr : std::aligned_alloc(multiple, rounded);
}

void* AllocateArray(std::size_t bytes, std::align_val_t alignment) noexcept {
  return g_no_aligned_arrays ? nullptr : Allocate(bytes, alignment);
}

void* OrThrow(void* buffer) {
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}

}  // namespace

OneAllocationFails::OneAllocationFails(AllocatingThread of, int64_t given) {
  g_is_callers = true;
  g_of = of;
  g_given = given;
}
OneAllocationFails::~OneAllocationFails() { g_given = -1; }
bool OneAllocationFails::struck() const { return g_given < 0; }

AlignedArraysFail::AlignedArraysFail() { g_no_aligned_arrays = true; }
AlignedArraysFail::~AlignedArraysFail() { g_no_aligned_arrays = false; }

}  // namespace everlong

using everlong::Allocate;
using everlong::AllocateArray;
using everlong::OrThrow;

void* operator new(std::size_t bytes) { return OrThrow(Allocate(bytes)); }
void* operator new[](std::size_t bytes) { return OrThrow(Allocate(bytes)); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept { return Allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept { return Allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return OrThrow(Allocate(bytes, alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return OrThrow(AllocateArray(bytes, alignment)); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t& /*unused*/) noexcept {
  return Allocate(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t& /*unused*/) noexcept {
  return AllocateArray(bytes, alignment);
}

void operator delete(void* buffer) noexcept { std::free(buffer); }
void operator delete[](void* buffer) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::size_t) noexcept { std::free(buffer); }
void operator delete[](void* buffer, std::size_t) noexcept { std::free(buffer); }
void operator delete(void* buffer, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
void operator delete[](void* buffer, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::align_val_t) noexcept { std::free(buffer); }
void operator delete[](void* buffer, std::align_val_t) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::size_t, std::align_val_t) noexcept { std::free(buffer); }
void operator delete[](void* buffer, std::size_t, std::align_val_t) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::align_val_t, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
void operator delete[](void* buffer, std::align_val_t, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
