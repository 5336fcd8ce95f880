// Vector indexes when an allocation fails.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base_allocation_failures.h"
#include "everlong/index/vector_index.h"

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
      {
        const OneAllocationFails shortage(failures);
        added = index->Add(ids, vectors);
      }
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
