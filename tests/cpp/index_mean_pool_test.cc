#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "everlong/index/mean_pool_index.h"

namespace everlong::index {
namespace {

constexpr int32_t kDimension = 24;

std::vector<float> RandomVector(std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> vector(kDimension);
  std::ranges::generate(vector, [&] { return normal(random); });
  return vector;
}

double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return dot / std::sqrt(aa * bb);
}

void ExpectCosines(const MeanPoolIndex& index, const std::map<int64_t, std::vector<float>>& blocks,
                   const std::vector<float>& query, int32_t k) {
  std::vector<std::pair<double, int64_t>> ranked;
  for (const auto& [block, sum] : blocks) ranked.emplace_back(-Cosine(sum, query), block);
  std::ranges::sort(ranked);
  const auto hits = index.Search(query, k);
  ASSERT_TRUE(hits.ok());
  ASSERT_EQ(hits->size(), std::min(blocks.size(), static_cast<size_t>(k)));
  for (size_t i = 0; i < hits->size(); ++i) {
    EXPECT_EQ((*hits)[i].block, ranked[i].second);
    EXPECT_NEAR((*hits)[i].score, -ranked[i].first, 1e-6);
  }
}

TEST(MeanPoolIndex, RanksByCosineThroughAddsAndForgets) {
  std::mt19937 random(1);
  MeanPoolIndex index(kDimension);
  std::map<int64_t, std::vector<float>> blocks;
  for (int64_t block = 1; block <= 60; ++block) {
    blocks[block] = RandomVector(random);
    ASSERT_TRUE(index.Add(block, blocks[block], 1 + block % 7).ok());
  }
  for (const int64_t block : {60, 1, 33, 59, 2, 999}) {
    index.Forget(block);
    blocks.erase(block);
    EXPECT_EQ(index.size(), static_cast<int64_t>(blocks.size()));
    for (const int32_t k : {1, 10, 1000}) ExpectCosines(index, blocks, RandomVector(random), k);
  }
  blocks[33] = RandomVector(random);
  ASSERT_TRUE(index.Add(33, blocks[33], 5).ok());
  ExpectCosines(index, blocks, RandomVector(random), 1000);
  for (int64_t block = 1; block <= 60; ++block) index.Forget(block);
  EXPECT_EQ(index.size(), 0);
  EXPECT_TRUE(index.Search(RandomVector(random), 3)->empty());
}

TEST(MeanPoolIndex, TiesGoToTheOlderBlock) {
  std::mt19937 random(2);
  const std::vector<float> vector = RandomVector(random);
  MeanPoolIndex index(kDimension);
  for (const int64_t block : {5, 9, 2, 7}) ASSERT_TRUE(index.Add(block, vector, 3).ok());
  index.Forget(5);
  const auto hits = index.Search(vector, 2);
  ASSERT_EQ(hits->size(), 2U);
  EXPECT_EQ((*hits)[0].block, 2);
  EXPECT_EQ((*hits)[1].block, 7);
}

TEST(MeanPoolIndex, ZeroVectorsHaveNoDirection) {
  std::mt19937 random(3);
  MeanPoolIndex index(kDimension);
  ASSERT_TRUE(index.Add(1, std::vector<float>(kDimension, 0.0F), 3).ok());
  ASSERT_TRUE(index.Add(2, RandomVector(random), 3).ok());
  const auto by_zero = index.Search(std::vector<float>(kDimension, 0.0F), 2);
  ASSERT_EQ(by_zero->size(), 2U);
  EXPECT_EQ((*by_zero)[0].score, 0.0F);
  EXPECT_EQ((*by_zero)[1].score, 0.0F);
  const auto hits = index.Search(RandomVector(random), 2);
  const auto zero = std::ranges::find(*hits, 1, &BlockHit::block);
  ASSERT_NE(zero, hits->end());
  EXPECT_EQ(zero->score, 0.0F);
}

TEST(MeanPoolIndex, RefusesBadArguments) {
  std::mt19937 random(4);
  MeanPoolIndex index(kDimension);
  const std::vector<float> good = RandomVector(random);
  std::vector<float> bad = good;
  bad[3] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(index.Add(1, good, 1).ok());
  EXPECT_EQ(index.Add(1, good, 1).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(index.Add(2, good, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(2, bad, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(2, std::span(good).first(5), 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.size(), 1);
  EXPECT_EQ(index.Search(bad, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Search(std::span(good).first(5), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Search(good, 0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::index
