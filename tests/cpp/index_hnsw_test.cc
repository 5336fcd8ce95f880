// The graph index against the flat one, which is exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base_file_limit.h"
#include "base_temporary_folder.h"
#include "everlong/index/vector_index.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

constexpr int32_t kDimension = 12;
constexpr int64_t kCount = 3000;

// A graph that searches as one at this size, and the exact index of the same vectors.
struct Pair {
  std::unique_ptr<VectorIndex> graph;
  std::unique_ptr<VectorIndex> exact;

  void Add(std::mt19937_64& random, const std::vector<int64_t>& ids) const { AddToBoth(*graph, *exact, random, ids); }
  void Remove(const std::vector<int64_t>& ids) const {
    EXPECT_EQ(graph->Remove(ids), exact->Remove(ids));
    EXPECT_EQ(graph->size(), exact->size());
  }
  // The share of the exact k best that the graph finds.
  [[nodiscard]] double Recall(std::mt19937_64& random, int32_t k, const IdFilter& filter) const {
    const std::vector<float> queries = RandomVectors(random, 50, kDimension);
    const auto found = graph->Search(queries, k, filter).value();
    const auto best = exact->Search(queries, k, filter).value();
    double hits = 0;
    for (size_t q = 0; q < best.size(); ++q) {
      EXPECT_EQ(found[q].size(), best[q].size());
      std::set<int64_t> ids;
      for (const VectorHit& hit : found[q]) {
        EXPECT_TRUE(filter.Allows(hit.id));
        EXPECT_TRUE(ids.insert(hit.id).second);
      }
      EXPECT_TRUE(std::ranges::is_sorted(found[q], std::ranges::greater(), &VectorHit::score));
      for (const VectorHit& hit : best[q]) hits += std::ranges::count(found[q], hit) > 0 ? 1 : 0;  // score and all
    }
    return hits / static_cast<double>(best.size() * static_cast<size_t>(k));
  }
};

Pair MakePair(Metric metric, int32_t exact_below = 0) {
  return {MakeHnswIndex({.dimension = kDimension,
                         .metric = metric,
                         .links = 8,
                         .ef_construction = 100,
                         .ef = 80,
                         .exact_below = exact_below}),
          MakeFlatIndex({kDimension, metric, VectorStorage::kFp32})};
}

TEST(HnswIndex, FindsNearlyAllThroughRemovalsAndReuse) {
  std::mt19937_64 random(1);
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    const Pair pair = MakePair(metric);
    pair.Add(random, Ids(0, kCount));
    EXPECT_GE(pair.Recall(random, 5, {}), 0.98);
    EXPECT_GE(pair.Recall(random, 5, IdFilter([](int64_t id) { return id % 10 != 0; })), 0.98);
    const int64_t bytes = pair.graph->bytes();

    std::vector<int64_t> odd;
    for (int64_t id = 1; id < kCount; id += 2) odd.push_back(id);
    pair.Remove(odd);
    EXPECT_GE(pair.Recall(random, 5, {}), 0.97);
    // The same ids anew, and others: into the same room.
    odd.resize(odd.size() / 2);
    pair.Add(random, odd);
    pair.Add(random, Ids(kCount, kCount / 4));
    EXPECT_LE(pair.graph->bytes(), bytes + bytes / 10);
    EXPECT_EQ(pair.graph->size(), pair.exact->size());
    EXPECT_GE(pair.Recall(random, 5, {}), 0.97);
  }
}

TEST(HnswIndex, IsExactWhereFewAreAllowed) {
  std::mt19937_64 random(2);
  const Pair small = MakePair(Metric::kCosine, 10'000);
  small.Add(random, Ids(0, 1000));
  const std::vector<float> queries = RandomVectors(random, 20, kDimension);
  EXPECT_EQ(small.graph->Search(queries, 7, {}).value(), small.exact->Search(queries, 7, {}).value());

  const Pair pair = MakePair(Metric::kL2);
  pair.Add(random, Ids(0, kCount));
  const IdFilter one_percent([](int64_t id) { return id % 100 == 3; });
  EXPECT_EQ(pair.graph->Search(queries, 7, one_percent).value(), pair.exact->Search(queries, 7, one_percent).value());
  EXPECT_EQ(pair.graph->Search(queries, kCount + 1, {}).value(), pair.exact->Search(queries, kCount + 1, {}).value());
  const auto none = pair.graph->Search(queries, 7, IdFilter([](int64_t) { return false; })).value();
  for (const VectorHits& hits : none) EXPECT_TRUE(hits.empty());
}

// Rows are counted no further than it takes to know that the graph is cheaper.
TEST(HnswIndex, AFilterThatAllowsAllIsAskedAboutFewRows) {
  constexpr int64_t kRows = 4000;
  std::mt19937_64 random(7);
  const auto index = MakeHnswIndex({.dimension = 4, .links = 4, .ef_construction = 8, .ef = 8, .exact_below = 10});
  ASSERT_TRUE(index->Add(Ids(0, kRows), RandomVectors(random, kRows, 4)).ok());
  const std::vector<float> query = RandomVectors(random, 1, 4);
  int64_t asked = 0;
  const auto found = index->Search(query, 5, IdFilter([&asked](int64_t id) {
                                     ++asked;
                                     return id != 0;
                                   }));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)[0].size(), 5U);
  EXPECT_LT(asked, kRows / 2);
  // One for which the graph finds too few gets all that are allowed.
  const auto few = index->Search(query, kRows, IdFilter([](int64_t id) { return id >= kRows / 2; }));
  ASSERT_TRUE(few.ok());
  EXPECT_EQ((*few)[0].size(), static_cast<size_t>(kRows / 2));
}

TEST(HnswIndex, RefusesWhatItCannotAnswerAndStaysAsItWas) {
  const auto index = MakeHnswIndex({.dimension = 2, .metric = Metric::kL2});
  EXPECT_TRUE(index->Search(std::vector<float>{1, 1}, 5, {})->at(0).empty());
  ASSERT_TRUE(index->Add(std::vector<int64_t>{1, 2}, std::vector<float>{1, 2, 3, 4}).ok());
  ExpectRefusals(*index);
  EXPECT_EQ(index->Remove(std::vector<int64_t>{1, 2, 3}), 2);
  EXPECT_TRUE(index->Search(std::vector<float>{1, 1}, 5, {})->at(0).empty());
  ASSERT_TRUE(index->Add(std::vector<int64_t>{2}, std::vector<float>{7, 8}).ok());
  EXPECT_EQ(index->Search(std::vector<float>{7, 8}, 5, {})->at(0), (VectorHits{{2, 0.0F}}));
}

TEST(HnswIndex, ALoadedGraphTakesAsMuchAsTheSavedOne) {
  const TemporaryFolder folder;
  std::mt19937_64 random(5);
  const Pair pair = MakePair(Metric::kL2);
  const int64_t empty = pair.graph->bytes();
  pair.Add(random, Ids(0, 1024));  // as many as an empty graph has room for
  EXPECT_GT(pair.graph->bytes(), empty);
  ASSERT_TRUE(pair.graph->Save(folder.path() / "index").ok());
  EXPECT_EQ(LoadHnswIndex(folder.path() / "index").value()->bytes(), pair.graph->bytes());
}

TEST(HnswIndex, ASavedGraphGoesOnAndADamagedOneIsRefused) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "index";
  const std::filesystem::path beside = file.string() + ".writing";
  std::mt19937_64 random(3);
  Pair pair = MakePair(Metric::kCosine);
  pair.Add(random, Ids(0, 400));
  pair.Remove({3, 7, 399});
  ASSERT_TRUE(pair.graph->Save(file).ok());
  const std::vector<float> queries = RandomVectors(random, 10, kDimension);
  const auto before = pair.graph->Search(queries, 5, {}).value();

  // A save that fails half way leaves the file that was there, and nothing beside it.
  std::filesystem::create_directory(beside);
  {
    const FileLimit limit(4096);
    EXPECT_EQ(pair.graph->Save(file).code(), StatusCode::kIoError);
  }
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(name.starts_with(file.filename().string() + ".") && entry.path() != beside) << name;
  }
  std::filesystem::remove_all(beside);
  auto loaded = LoadHnswIndex(file);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->size(), 397);
  EXPECT_EQ((*loaded)->Search(queries, 5, {}).value(), before);
  pair.graph = std::move(*loaded);
  pair.Add(random, {3, 1000, 1001, 1002, 1003});
  EXPECT_GE(pair.Recall(random, 5, {}), 0.97);
  EXPECT_EQ(LoadFlatIndex(file).status().code(), StatusCode::kCorrupt) << "another kind of index";

  ExpectDamageIsCorrupt(file, std::filesystem::file_size(file) / 50, &LoadHnswIndex);
}

// What a memory forgets must not lie in its folder: neither the vector nor its id.
TEST(HnswIndex, AFileHoldsNothingOfWhatWasRemoved) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "index";
  std::mt19937_64 random(5);
  constexpr int64_t kFirst = 0x1122334455667000;
  Pair pair = MakePair(Metric::kL2);
  const std::vector<int64_t> ids = Ids(kFirst, 1500);
  const std::vector<float> vectors = RandomVectors(random, std::ssize(ids), kDimension);
  ASSERT_TRUE(pair.graph->Add(ids, vectors).ok());
  ASSERT_TRUE(pair.exact->Add(ids, vectors).ok());
  const auto holds = [&](size_t i) {
    const std::string bytes = BytesOf(file);
    const bool vector =
        bytes.find({reinterpret_cast<const char*>(&vectors[i * kDimension]), kDimension * 4}) != std::string::npos;
    const bool id = bytes.find({reinterpret_cast<const char*>(&ids[i]), sizeof ids[i]}) != std::string::npos;
    EXPECT_EQ(vector, id);
    return vector || id;
  };
  ASSERT_TRUE(pair.graph->Save(file).ok());
  EXPECT_TRUE(holds(7) && holds(1499));
  pair.Remove({kFirst + 7, kFirst + 1499});
  ASSERT_TRUE(pair.graph->Save(file).ok());
  EXPECT_FALSE(holds(7) || holds(1499));
  EXPECT_TRUE(holds(0) && holds(1498));
  auto loaded = LoadHnswIndex(file);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  std::swap(pair.graph, *loaded);
  EXPECT_EQ(pair.graph->size(), 1498);
  EXPECT_GE(pair.Recall(random, 5, {}), 0.97);

  // All of them.
  EXPECT_EQ(pair.graph->Remove(ids), 1498);
  ASSERT_TRUE(pair.graph->Save(file).ok());
  EXPECT_EQ(LoadHnswIndex(file).value()->size(), 0);
  EXPECT_FALSE(holds(0));
}

TEST(HnswIndex, SearchesRunBesideAWriter) {
  std::mt19937_64 random(4);
  const auto index = MakeHnswIndex({.dimension = kDimension, .exact_below = 0});
  ASSERT_TRUE(index->Add(Ids(0, 50), RandomVectors(random, 50, kDimension)).ok());
  SearchBeside(
      *index, RandomVectors(random, 1, kDimension), 5, [](const auto& ids) { EXPECT_EQ(ids.size(), 5U); },
      [&] {
        for (int64_t id = 50; id < 250; ++id) {
          ASSERT_TRUE(index->Add(std::vector<int64_t>{id}, RandomVectors(random, 1, kDimension)).ok());
          if (id % 3 == 0) {
            EXPECT_EQ(index->Remove(std::vector<int64_t>{id - 20}), 1);
          }
        }
      });
}

TEST(HnswIndex, SearchesSeeEveryVectorThatWasAddedBeforeThemWhileTheGraphGrows) {
  constexpr int64_t kFirst = 900;
  constexpr int64_t kAtOnce = 600;
  constexpr int64_t kAll = kFirst + 3 * kAtOnce;  // it begins with room for 1,024, and grows twice
  std::mt19937_64 random(8);
  for (const int32_t exact_below : {0, 10'000}) {
    const auto index =
        MakeHnswIndex({.dimension = kDimension, .links = 8, .ef_construction = 20, .exact_below = exact_below});
    ASSERT_TRUE(index->Add(Ids(0, kFirst), RandomVectors(random, kFirst, kDimension)).ok());
    std::atomic<int64_t> added = kFirst;
    const std::vector<float> query = RandomVectors(random, 1, kDimension);
    std::vector<std::jthread> readers;
    for (int i = 0; i < 2; ++i) {
      readers.emplace_back([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          const int64_t before = added;
          const auto found = index->Search(query, kAll, {});
          ASSERT_TRUE(found.ok());
          std::set<int64_t> ids;
          for (const VectorHit& hit : found->at(0)) ASSERT_TRUE(ids.insert(hit.id).second);
          for (int64_t id = 0; id < before; ++id) ASSERT_TRUE(ids.contains(id)) << id << " of " << before;
          ASSERT_FALSE(index->Vector(before - 1).empty());
        }
      });
    }
    while (added < kAll) {
      ASSERT_TRUE(index->Add(Ids(added, kAtOnce), RandomVectors(random, kAtOnce, kDimension)).ok());
      added += kAtOnce;
    }
  }
}

}  // namespace
}  // namespace everlong::index
