// Whatever form a filter has, a search returns the same of it: the best of the allowed ids, by brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/vector_index.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

constexpr int32_t kDimension = 12;
constexpr int64_t kIds = 4000;

std::vector<std::unique_ptr<VectorIndex>> EveryKind() {
  std::vector<std::unique_ptr<VectorIndex>> kinds;
  kinds.push_back(MakeFlatIndex({.dimension = kDimension}));
  kinds.push_back(MakeHnswIndex({.dimension = kDimension}));
  kinds.push_back(MakeNeuralInvertedIndex({.dimension = kDimension}));
  return kinds;
}

TEST(IdFilter, FewIdsAndBytesFindWhatAFunctionFinds) {
  std::mt19937_64 random(21);
  for (const std::unique_ptr<VectorIndex>& index : EveryKind()) {
    std::vector<int64_t> ids(kIds);
    for (size_t at = 0; at < ids.size(); ++at) ids[at] = static_cast<int64_t>(2 * at);
    std::ranges::shuffle(ids, random);
    ASSERT_TRUE(index->Add(ids, RandomVectors(random, kIds, kDimension)).ok());
    index->Remove(std::span(ids).first(500));
    for (const double share : {0.0, 0.0005, 0.01, 0.05, 0.3, 1.0}) {
      std::vector<uint8_t> bytes(2 * kIds + 100, 0);
      std::bernoulli_distribution is_allowed(share);
      std::ranges::generate(bytes, [&] { return static_cast<uint8_t>(is_allowed(random) ? 7 : 0); });
      std::vector<int64_t> few;  // ids that were removed and that never were among them
      for (size_t id = 0; id < bytes.size(); ++id) {
        if (bytes[id] != 0) few.push_back(static_cast<int64_t>(id));
      }
      const auto allows = [&bytes](int64_t id) { return bytes[static_cast<size_t>(id)] != 0; };
      const std::vector<float> queries = RandomVectors(random, 4, kDimension);
      for (const int32_t k : {1, 10, 5000}) {
        const auto expected = index->Search(queries, k, IdFilter(allows)).value();
        EXPECT_EQ(index->Search(queries, k, IdFilter::Few(few)).value(), expected) << share << " " << k;
        EXPECT_EQ(index->Search(queries, k, IdFilter::Bitmap(bytes)).value(), expected) << share << " " << k;
      }
    }
  }
}

TEST(IdFilter, FewIdsAreNotAskedForOneByOne) {
  std::vector<uint8_t> bytes(1600, 0);
  EXPECT_NE(IdFilter::Bitmap(bytes).few(), nullptr);
  for (size_t at = 0; at < 100; ++at) bytes[at * 3] = 1;
  const IdFilter few = IdFilter::Bitmap(bytes);
  ASSERT_NE(few.few(), nullptr);
  EXPECT_EQ(few.few()->size(), 100U);
  EXPECT_EQ((*few.few())[99], 297);
  EXPECT_FALSE(few.all());
  bytes[1599] = 1;
  EXPECT_EQ(IdFilter::Bitmap(bytes).few(), nullptr);
  EXPECT_TRUE(IdFilter::Bitmap(bytes).Allows(1599));
  EXPECT_FALSE(IdFilter::Bitmap(bytes).Allows(1600));
}

}  // namespace
}  // namespace everlong::index
