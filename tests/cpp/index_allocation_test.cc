// Vector indexes when an allocation fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "everlong/index/vector_index.h"

namespace {

thread_local int64_t g_left = -1;  // allocations of this thread that are given before one is not; -1: all

bool Refused() {
  if (g_left < 0) return false;
  if (g_left == 0) {
    g_left = -1;
    return true;
  }
  --g_left;
  return false;
}

}  // namespace

// These take the place of the library's in this program.
void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return Refused() ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
}
void* operator new(std::size_t bytes) {
  void* const buffer = operator new(bytes, std::nothrow);
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}
void operator delete(void* buffer, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
void operator delete(void* buffer) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::size_t) noexcept { std::free(buffer); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto multiple = static_cast<std::size_t>(alignment);
  void* const buffer = Refused() ? nullptr : std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple);
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}
void operator delete(void* buffer, std::align_val_t) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::size_t, std::align_val_t) noexcept { std::free(buffer); }

namespace everlong::index {
namespace {

TEST(IndexAllocation, AFlatIndexThatCannotGrowStaysAsItWas) {
  for (const VectorStorage storage : {VectorStorage::kFp32, VectorStorage::kInt8}) {
    const auto index = MakeFlatIndex({3, Metric::kL2, storage});
    ASSERT_TRUE(index->Add(std::vector<int64_t>{7, 8}, std::vector<float>{1, 2, 3, 4, 5, 6}).ok());
    const std::vector<float> query{1, 2, 3};
    const auto before = index->Search(query, 100, {}).value();
    std::vector<int64_t> ids(40);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(100 + i);
    const std::vector<float> vectors(3 * ids.size(), 1.0F);
    Status added;
    int64_t failures = 0;
    while (true) {
      g_left = failures;
      added = index->Add(ids, vectors);
      g_left = -1;
      if (added.ok()) break;
      ++failures;
      ASSERT_EQ(added.code(), StatusCode::kCapacity) << added.ToString();
      ASSERT_EQ(index->size(), 2);
      ASSERT_EQ(index->ids(), (std::vector<int64_t>{7, 8}));
      ASSERT_EQ(index->Search(query, 100, {}).value(), before);
    }
    EXPECT_GE(failures, 40);  // of its rows, its ids, each entry of its map
    EXPECT_EQ(index->Search(query, 100, {}).value()[0].size(), 42U);
    EXPECT_EQ(index->Remove(ids), 40);
    EXPECT_EQ(index->Search(query, 100, {}).value(), before);
  }
}

}  // namespace
}  // namespace everlong::index
