// The flat index and its kernels, against brute force in fp64 over what each storage keeps by its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "../../cpp/index/vector_kernel.h"
#include "base_temporary_folder.h"
#include "everlong/base/element.h"
#include "everlong/index/vector_index.h"
#include "index_reference.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

constexpr Metric kMetrics[] = {Metric::kInnerProduct, Metric::kCosine, Metric::kL2};
constexpr VectorStorage kStorages[] = {VectorStorage::kFp32, VectorStorage::kBf16, VectorStorage::kInt8,
                                       VectorStorage::kE4M3};

std::vector<double> Normalised(std::span<const float> vector, Metric metric) {
  std::vector<double> out(vector.begin(), vector.end());
  if (metric != Metric::kCosine) return out;
  double square = 0;
  for (const double x : out) square += x * x;
  // The index normalises to fp32.
  for (double& x : out) x = static_cast<float>(square > 0 ? x / std::sqrt(square) : 0);
  return out;
}

// What is left of a vector in a storage.
std::vector<double> Kept(std::span<const float> vector, Metric metric, VectorStorage storage) {
  std::vector<double> kept = Normalised(vector, metric);
  double largest = 0;
  for (const double x : kept) largest = std::max(largest, std::abs(x));
  if (largest == 0) return kept;
  for (double& x : kept) {
    if (storage == VectorStorage::kBf16) x = RoundToBf16(x);
    if (storage == VectorStorage::kInt8) {
      const float scale = static_cast<float>(largest) / 127.0F;
      x = std::nearbyint(static_cast<float>(x) * (1.0F / scale)) * static_cast<double>(scale);
    }
    if (storage == VectorStorage::kE4M3) {
      const float scale = static_cast<float>(largest) / 448.0F;
      x = static_cast<double>(E4M3ToFloat(FloatToE4M3(static_cast<float>(x) * (1.0F / scale)))) *
          static_cast<double>(scale);
    }
  }
  return kept;
}

double Score(const std::vector<double>& query, const std::vector<double>& kept, Metric metric) {
  double score = 0;
  for (size_t i = 0; i < query.size(); ++i) {
    score += metric == Metric::kL2 ? -(query[i] - kept[i]) * (query[i] - kept[i]) : query[i] * kept[i];
  }
  return score;
}

using Known = std::map<int64_t, std::vector<float>>;

void ExpectExact(const VectorIndex& index, VectorStorage storage, const Known& known, std::span<const float> queries,
                 int32_t k, const IdFilter& filter) {
  const auto found = index.Search(queries, k, filter);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  const auto dimension = static_cast<size_t>(index.dimension());
  ASSERT_EQ(found->size(), queries.size() / dimension);
  for (size_t q = 0; q < found->size(); ++q) {
    const std::vector<double> query = Normalised(queries.subspan(q * dimension, dimension), index.metric());
    std::vector<std::pair<double, int64_t>> ranked;
    for (const auto& [id, vector] : known) {
      if (filter.Allows(id))
        ranked.emplace_back(-Score(query, Kept(vector, index.metric(), storage), index.metric()), id);
    }
    std::ranges::sort(ranked);
    const VectorHits& hits = (*found)[q];
    ASSERT_EQ(hits.size(), std::min(ranked.size(), static_cast<size_t>(k)));
    for (size_t i = 0; i < hits.size(); ++i) {
      EXPECT_EQ(hits[i].id, ranked[i].second) << "rank " << i;
      EXPECT_NEAR(hits[i].score, -ranked[i].first, 1e-6 * (1 + std::abs(ranked[i].first)));
    }
  }
}

Known Add(VectorIndex& index, std::mt19937_64& random, std::vector<int64_t> ids) {
  const std::vector<float> vectors = RandomVectors(random, std::ssize(ids), index.dimension());
  EXPECT_TRUE(index.Add(ids, vectors).ok());
  Known known;
  const auto width = static_cast<std::ptrdiff_t>(index.dimension());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto from = vectors.begin() + static_cast<std::ptrdiff_t>(i) * width;
    known[ids[i]] = {from, from + width};
  }
  return known;
}

TEST(FlatIndex, RanksAsBruteForceThroughAddsRemovalsAndFilters) {
  std::mt19937_64 random(1);
  for (const Metric metric : kMetrics) {
    for (const VectorStorage storage : kStorages) {
      for (const int32_t dimension : {1, 7, 16, 100}) {
        const auto index = MakeFlatIndex({dimension, metric, storage});
        std::vector<int64_t> ids(700);
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 3;
        std::ranges::shuffle(ids, random);
        Known known = Add(*index, random, ids);
        const std::vector<float> queries = RandomVectors(random, 5, dimension);
        ExpectExact(*index, storage, known, queries, 10, {});
        std::vector<int64_t> gone(ids.begin(), ids.begin() + 350);
        gone.push_back(1);  // not here
        EXPECT_EQ(index->Remove(gone), 350);
        for (const int64_t id : gone) known.erase(id);
        EXPECT_EQ(index->size(), 350);
        known.merge(Add(*index, random, {ids[3], 5000, 5001}));
        for (const int32_t k : {1, 10, 1000}) ExpectExact(*index, storage, known, queries, k, {});
        ExpectExact(*index, storage, known, queries, 10, IdFilter([](int64_t id) { return id % 2 == 0; }));
        std::vector<uint8_t> allowed(2100, 0);
        allowed[static_cast<size_t>(ids[400])] = 1;
        ExpectExact(*index, storage, known, queries, 10, IdFilter::Bitmap(allowed));
      }
    }
  }
}

TEST(FlatIndex, EveryInstructionSetScoresAlike) {
  std::mt19937_64 random(2);
  const KernelTable<VectorKernel>& kernels = SupportedVectorKernels();
  std::uniform_int_distribution<int> byte(0, 255);
  constexpr int64_t kRows = 9;
  constexpr int64_t kQueries = 6;
  for (const int64_t width : {16, 48, 128}) {
    const std::vector<float> queries = RandomVectors(random, kQueries, static_cast<int32_t>(width));
    const std::vector<float> scales = RandomVectors(random, kRows, 1);
    for (size_t storage = 0; storage < 4; ++storage) {
      const int64_t element_bytes = storage == 0 ? 4 : storage == 1 ? 2 : 1;
      // One byte more than a row, so that rows lie at odd addresses.
      std::vector<std::byte> bytes(static_cast<size_t>(kRows * (width * element_bytes + 1)));
      for (std::byte& b : bytes) b = static_cast<std::byte>(byte(random));
      if (storage != 2) {  // no NaN and nothing huge: clear the top bits of the exponent
        const uint8_t mask = storage == 3 ? 0xBF : 0x3F;
        for (std::byte& b : bytes) b &= static_cast<std::byte>(mask);
      }
      const StoredRows rows{bytes.data(), width * element_bytes + 1, kRows, width,
                            storage >= 2 ? scales.data() : nullptr};
      for (const bool distance : {false, true}) {
        std::vector<float> expected(kQueries * kRows);
        const VectorKernel& last = kernels.kernels[kernels.count - 1];
        (distance ? last.distance : last.dot)[storage](rows, queries.data(), kQueries, expected.data());
        for (int32_t i = 0; i + 1 < kernels.count; ++i) {
          std::vector<float> scores(kQueries * kRows);
          const VectorKernel& kernel = kernels.kernels[i];
          (distance ? kernel.distance : kernel.dot)[storage](rows, queries.data(), kQueries, scores.data());
          for (size_t at = 0; at < scores.size(); ++at) {
            EXPECT_NEAR(scores[at], expected[at], (storage == 2 ? 1e-2 : 1e-4) * (1 + std::abs(expected[at])))
                << storage << " " << distance;
          }
        }
      }
    }
    for (int32_t i = 0; i < kernels.count; ++i) {
      double dot = 0;
      double distance = 0;
      for (size_t at = 0; at < static_cast<size_t>(width); ++at) {
        const double a = queries[at];
        const double b = queries[at + static_cast<size_t>(width)];
        dot += a * b;
        distance += (a - b) * (a - b);
      }
      EXPECT_NEAR(kernels.kernels[i].negative_dot(queries.data(), queries.data() + width, &width), -dot, 1e-4);
      EXPECT_NEAR(kernels.kernels[i].squared_distance(queries.data(), queries.data() + width, &width), distance, 1e-4);
    }
  }
}

TEST(FlatIndex, TiesGoToTheSmallerIdAndZeroVectorsHaveNoDirection) {
  const auto index = MakeFlatIndex({3, Metric::kCosine, VectorStorage::kFp32});
  const std::vector<float> vectors{1, 2, 3, 2, 4, 6, 0, 0, 0, 1, 2, 3};
  ASSERT_TRUE(index->Add(std::vector<int64_t>{9, 4, 2, 7}, vectors).ok());
  const auto hits = index->Search(std::vector<float>{1, 2, 3}, 3, {});
  EXPECT_EQ((*hits)[0][0].id, 4);
  EXPECT_EQ((*hits)[0][1].id, 7);
  EXPECT_EQ((*hits)[0][2].id, 9);
  const auto by_zero = index->Search(std::vector<float>{0, 0, 0}, 9, {});
  ASSERT_EQ((*by_zero)[0].size(), 4U);
  for (const VectorHit& hit : (*by_zero)[0]) EXPECT_EQ(hit.score, 0.0F);
}

TEST(FlatIndex, RefusesWhatItCannotAnswerAndStaysAsItWas) {
  const auto index = MakeFlatIndex({2, Metric::kL2, VectorStorage::kBf16});
  EXPECT_TRUE(index->Search(std::vector<float>{1, 1}, 5, {})->at(0).empty()) << "empty index";
  ASSERT_TRUE(index->Add(std::vector<int64_t>{1, 2}, std::vector<float>{1, 2, 3, 4}).ok());
  ExpectRefusals(*index);
  ASSERT_TRUE(index->Add(std::vector<int64_t>{5}, std::vector<float>{1, 2}).ok());
  EXPECT_EQ(index->Search(std::vector<float>{1, 2}, 9, {})->at(0).size(), 3U);
}

TEST(FlatIndex, ASavedIndexAnswersTheSameAndADamagedOneIsRefused) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "index";
  std::mt19937_64 random(3);
  for (const VectorStorage storage : kStorages) {
    const auto index = MakeFlatIndex({20, Metric::kInnerProduct, storage});
    Known known = Add(*index, random, {4, 8, 1, 300});
    ASSERT_TRUE(index->Save(file).ok());
    auto loaded = LoadFlatIndex(file);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    const std::vector<float> queries = RandomVectors(random, 3, 20);
    EXPECT_EQ(*(*loaded)->Search(queries, 10, {}), *index->Search(queries, 10, {}));
    EXPECT_EQ((*loaded)->Remove(std::vector<int64_t>{8}), 1);
    known.erase(8);
    known.merge(Add(**loaded, random, {8, 9}));
    ExpectExact(**loaded, storage, known, queries, 10, {});
  }
  ExpectDamageIsCorrupt(file, 7, &LoadFlatIndex);
}

// Of every index: a vector comes back as it is kept, of a cosine's its direction.
TEST(VectorIndex, GivesAVectorBack) {
  std::mt19937_64 random(6);
  constexpr int32_t kWidth = 21;
  const std::vector<float> vectors = RandomVectors(random, 3, kWidth);
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    std::vector<std::pair<double, std::unique_ptr<VectorIndex>>> indexes;  // with how far off a number may be, of 1
    indexes.emplace_back(1e-6, MakeFlatIndex({kWidth, metric, VectorStorage::kFp32}));
    indexes.emplace_back(1.0 / 256, MakeFlatIndex({kWidth, metric, VectorStorage::kBf16}));
    indexes.emplace_back(1.0 / 127, MakeFlatIndex({kWidth, metric, VectorStorage::kInt8}));
    indexes.emplace_back(1.0 / 15, MakeFlatIndex({kWidth, metric, VectorStorage::kE4M3}));
    indexes.emplace_back(1e-6, MakeHnswIndex({.dimension = kWidth, .metric = metric}));
    for (const auto& [off, index] : indexes) {
      ASSERT_TRUE(index->Add(std::vector<int64_t>{5, 9, 7}, vectors).ok());
      EXPECT_EQ(index->Remove(std::vector<int64_t>{5}), 1);
      EXPECT_TRUE(index->Vector(5).empty());
      EXPECT_TRUE(index->Vector(1).empty());
      for (const auto& [id, row] : std::map<int64_t, int64_t>{{9, 1}, {7, 2}}) {
        const std::vector<float> expected(vectors.begin() + row * kWidth, vectors.begin() + (row + 1) * kWidth);
        double square = 0;
        double largest = 0;
        for (const float value : expected) {
          square += double{value} * double{value};
          largest = std::max(largest, std::abs(double{value}));
        }
        const double length = metric == Metric::kCosine ? std::sqrt(square) : 1;
        const std::vector<float> got = index->Vector(id);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_NEAR(got[i], expected[i] / length, off * largest / length);
        }
      }
    }
  }
}

TEST(FlatIndex, SearchesRunBesideAWriter) {
  std::mt19937_64 random(4);
  const auto index = MakeFlatIndex({12, Metric::kCosine, VectorStorage::kInt8});
  Add(*index, random, {0});
  const std::vector<float> query = RandomVectors(random, 1, 12);
  SearchBeside(
      *index, query, 1000, [](const auto& ids) { EXPECT_TRUE(ids.contains(0)); },
      [&] {
        for (int64_t id = 1; id < 300; ++id) {
          Add(*index, random, {id});
          if (id % 3 == 0) {
            EXPECT_EQ(index->Remove(std::vector<int64_t>{id - 1}), 1);
          }
        }
      });
}

}  // namespace
}  // namespace everlong::index
