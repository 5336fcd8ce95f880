// The index of learned lists against the flat one, which is exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "../../cpp/index/page_vectors.h"
#include "base_file_limit.h"
#include "base_temporary_folder.h"
#include "everlong/index/neural_inverted_index.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

constexpr int32_t kDimension = 12;

NeuralInvertedOptions Small(Metric metric) {
  return {
      .dimension = kDimension, .metric = metric, .list_vectors = 16, .probes = 4, .rescored = 32, .exact_below = 50};
}

struct Pair {
  explicit Pair(Metric metric)
      : lists(MakeNeuralInvertedIndex(Small(metric))),
        exact(MakeFlatIndex({.dimension = kDimension, .metric = metric})) {}
  void Add(std::mt19937_64& random, const std::vector<int64_t>& ids) const { AddToBoth(*lists, *exact, random, ids); }
  std::unique_ptr<NeuralInvertedIndex> lists;
  std::unique_ptr<VectorIndex> exact;
};

// Every vector is in one list, none is too full, and each list's centre is where a search finds it.
void ExpectWhole(const NeuralInvertedIndex& index) {
  const auto lists = index.lists();
  EXPECT_EQ(std::accumulate(lists.sizes.begin(), lists.sizes.end(), int64_t{0}), index.size());
  EXPECT_TRUE(std::ranges::is_sorted(lists.ids));
  std::map<int64_t, int64_t> counted;
  for (const int64_t list : index.ListsOf(index.ids())) ++counted[list];
  for (size_t i = 0; i < lists.ids.size(); ++i) {
    EXPECT_EQ(lists.sizes[i], counted[lists.ids[i]]);
    EXPECT_LE(lists.sizes[i], 2 * 16);
  }
  EXPECT_EQ(index.router().lists, lists.ids);
}

class NeuralInvertedTest : public testing::TestWithParam<Metric> {};

TEST_P(NeuralInvertedTest, AllListsTogetherAreExact) {
  std::mt19937_64 random(1);
  const Pair pair(GetParam());
  pair.Add(random, Ids(0, 700));
  const auto gone = Ids(100, 250);
  EXPECT_EQ(pair.lists->Remove(gone), 250);
  pair.exact->Remove(gone);
  pair.Add(random, Ids(1000, 300));
  ExpectWhole(*pair.lists);
  EXPECT_GT(pair.lists->lists().ids.size(), 20U);
  const std::vector<float> queries = RandomVectors(random, 40, kDimension);
  const IdFilter odd([](int64_t id) { return id % 2 == 1; });
  for (const IdFilter& filter : {IdFilter(), odd}) {
    const auto best = pair.exact->Search(queries, 5, filter).value();
    // int8 decides who is scored again: with many spare candidates, the same hits and scores.
    const auto found = pair.lists->Probe(queries, 5, filter, {.probes = 1'000}).value();
    EXPECT_EQ(found, best);
    // Fewer lists find most of them, and what they find has its exact score.
    const auto some = pair.lists->Probe(queries, 5, filter, {.probes = 8}).value();
    int64_t shared = 0;
    for (size_t q = 0; q < best.size(); ++q) {
      EXPECT_EQ(some[q].size(), 5U);
      for (const VectorHit& hit : some[q]) shared += std::ranges::count(best[q], hit);
    }
    EXPECT_GT(shared, 40 * 5 * 6 / 10);
  }
}

TEST_P(NeuralInvertedTest, AQueryBeginsAtTheNearestCentres) {
  std::mt19937_64 random(2);
  const Pair pair(GetParam());
  pair.Add(random, Ids(0, 500));
  const auto lists = pair.lists->lists();
  const auto router = pair.lists->router();
  const std::vector<float> query = RandomVectors(random, 1, kDimension);
  size_t first = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (size_t list = 0; list < lists.ids.size(); ++list) {
    double dot = 0;
    double square = 0;
    for (size_t i = 0; i < kDimension; ++i) {
      const float centre = lists.centroids[list * kDimension + i];
      dot += double{query[i]} * centre;
      square += (double{query[i]} - centre) * (double{query[i]} - centre);
    }
    const double score = GetParam() == Metric::kL2 ? -square : dot;
    if (score > highest) {
      highest = score;
      first = list;
    }
  }
  const auto one = pair.lists->Probe(query, 1, {}, {.probes = 1}).value()[0];
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(pair.lists->ListsOf(std::vector{one[0].id})[0], lists.ids[first]);
}

TEST_P(NeuralInvertedTest, ARouterDecidesWhereAQueryLooksAndHalvesInheritIt) {
  std::mt19937_64 random(3);
  const Pair pair(GetParam());
  pair.Add(random, Ids(0, 400));
  auto router = pair.lists->router();
  const std::vector<float> query = RandomVectors(random, 1, kDimension);
  const int64_t wanted = router.lists.back();
  router.biases.back() += 1e6F;
  ASSERT_TRUE(pair.lists->SetRouter(router).ok());
  const auto hit = pair.lists->Probe(query, 1, {}, {.probes = 1}).value()[0];
  EXPECT_EQ(pair.lists->ListsOf(std::vector{hit[0].id})[0], wanted);
  // Vectors at its centre until it is split: the halves are looked into first.
  const auto lists = pair.lists->lists();
  const std::span centre = std::span(lists.centroids).last(kDimension);
  std::vector<float> many;
  for (int i = 0; i < 40; ++i) {
    for (const float value : centre) many.push_back(value + 0.001F * static_cast<float>(i % 7));
  }
  ASSERT_TRUE(pair.lists->Add(Ids(5000, 40), many).ok());
  const auto after = pair.lists->router();
  ASSERT_FALSE(std::ranges::count(after.lists, wanted));
  EXPECT_GE(std::ranges::count_if(after.biases, [](float bias) { return bias > 1e5F; }), 2);
  const int64_t found = pair.lists->Probe(query, 1, {}, {.probes = 1}).value()[0][0].id;
  const auto at = std::ranges::find(after.lists, pair.lists->ListsOf(std::vector{found})[0]) - after.lists.begin();
  EXPECT_GT(after.biases[static_cast<size_t>(at)], 1e5F);

  router.lists = {wanted};
  router.vectors.resize(kDimension);
  router.biases.resize(1);
  EXPECT_EQ(pair.lists->SetRouter(router).code(), StatusCode::kNotFound);
  router.biases.push_back(0);
  EXPECT_EQ(pair.lists->SetRouter(router).code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Metrics, NeuralInvertedTest,
                         testing::Values(Metric::kInnerProduct, Metric::kCosine, Metric::kL2));

TEST(NeuralInvertedTest, RareTermsNameVectorsWhereverTheyLie) {
  std::mt19937_64 random(4);
  const Pair pair(Metric::kCosine);
  pair.Add(random, Ids(0, 600));
  const std::vector<float> query = RandomVectors(random, 1, kDimension);
  const auto order = pair.exact->Search(query, 600, {}).value()[0];
  // The second best of all that one probe does not see.
  const auto seen = pair.lists->Probe(query, 600, {}, {.probes = 1}).value()[0];
  const auto one = pair.lists->Probe(query, 3, {}, {.probes = 1}).value()[0];
  int64_t missed = -1;
  for (const VectorHit& hit : order) {
    if (std::ranges::count(one, hit) == 0) {
      missed = hit.id;
      break;
    }
  }
  ASSERT_TRUE(pair.lists->SetTerms(missed, std::vector<int32_t>{7, 7, -3}).ok());
  const InvertedQuery named{.probes = 1, .terms = {{1, 7}}};
  const auto with = pair.lists->Probe(query, 3, {}, named).value()[0];
  EXPECT_TRUE(std::ranges::any_of(with, [&](const VectorHit& hit) { return hit.id == missed; }));
  const IdFilter others([&](int64_t id) { return id != missed; });
  EXPECT_EQ(pair.lists->Probe(query, 3, others, named).value(),
            pair.lists->Probe(query, 3, others, {.probes = 1}).value());
  ASSERT_TRUE(pair.lists->SetTerms(missed, {}).ok());
  EXPECT_EQ(pair.lists->Probe(query, 3, {}, named).value()[0], one);
  EXPECT_EQ(seen.size(), 600U);  // fewer than are wanted in the lists: all are scored
  EXPECT_EQ(pair.lists->SetTerms(9999, {}).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair.lists->SetTerms(1, std::vector<int32_t>(65)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.lists->Probe(query, 3, {}, {.terms = {{1}, {2}}}).status().code(), StatusCode::kInvalidArgument);
  // A vector that goes takes its terms along, and its row's next one has none.
  ASSERT_TRUE(pair.lists->SetTerms(missed, std::vector<int32_t>{7}).ok());
  pair.lists->Remove(std::vector{missed});
  ASSERT_TRUE(pair.lists->Add(std::vector<int64_t>{7000}, RandomVectors(random, 1, kDimension)).ok());
  EXPECT_EQ(pair.lists->Probe(query, 3, {}, named).value(), pair.lists->Probe(query, 3, {}, {.probes = 1}).value());
}

// As a memory uses it: a page that no list on the way holds is found by a word that it shares with the question.
TEST(NeuralInvertedTest, PagesAreNamedByTheirWords) {
  constexpr int32_t kPages = 100;
  constexpr int64_t kBlocks = 300;  // more lists than are probed
  std::mt19937_64 random(8);
  PageVectors pages({"encoder", kDimension, VectorSearch::kDnii});
  BlockTable table(1);
  const std::vector<int32_t> all = [] {
    std::vector<int32_t> numbers(kPages);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }();
  for (int64_t block = 1; block <= kBlocks; ++block) {
    std::vector<std::vector<int32_t>> words;
    for (int32_t page = 0; page < kPages; ++page) words.push_back({static_cast<int32_t>(block * kPages) + page, 5});
    ASSERT_TRUE(pages.Add(block, kPages, all, RandomVectors(random, kPages, kDimension), words).ok());
    NewBlock entry;
    entry.id = block;
    entry.span = {block * kPages, (block + 1) * kPages};
    table.Append(entry);
  }
  EXPECT_EQ(
      pages.Add(5000, kPages, all, RandomVectors(random, kPages, kDimension), std::vector<std::vector<int32_t>>(3))
          .code(),
      StatusCode::kInvalidArgument);
  const std::vector<float> query = RandomVectors(random, 1, kDimension);
  const PageFilter every = PageFilter::All(table.pages());
  const PageVectors::Found best = pages.Search(query, {}, 1, table, every).value()[0];
  auto router = pages.lists()->router();
  const int64_t id = (best.block * (int64_t{1} << 24) + best.page) * kMaxPageVectors;
  const int64_t list = pages.lists()->ListsOf(std::vector{id})[0];
  ASSERT_GT(list, 0);
  router.biases[static_cast<size_t>(std::ranges::find(router.lists, list) - router.lists.begin())] = -1e6F;
  ASSERT_TRUE(pages.lists()->SetRouter(router).ok());
  const auto is_best = [&](const PageVectors::Found& found) {
    return found.block == best.block && found.page == best.page;
  };
  EXPECT_FALSE(std::ranges::any_of(pages.Search(query, {}, 3, table, every).value(), is_best));
  const auto word = static_cast<int32_t>(best.block * kPages) + best.page;
  EXPECT_TRUE(is_best(pages.Search(query, std::vector<int32_t>{5, word}, 3, table, every).value()[0]));
  // What all pages have names none: its posting is too long to be looked at.
  EXPECT_FALSE(std::ranges::any_of(pages.Search(query, std::vector<int32_t>{5}, 3, table, every).value(), is_best));
}

TEST(NeuralInvertedTest, SavedAndLoadedItIsTheSame) {
  const TemporaryFolder folder;
  std::mt19937_64 random(5);
  const Pair pair(Metric::kL2);
  pair.Add(random, Ids(0, 400));
  pair.lists->Remove(Ids(0, 50));
  auto router = pair.lists->router();
  for (float& bias : router.biases) bias += 0.1F * static_cast<float>(random() % 100);
  ASSERT_TRUE(pair.lists->SetRouter(router).ok());
  ASSERT_TRUE(pair.lists->SetTerms(399, std::vector<int32_t>{4, 2}).ok());
  const auto file = folder.path() / "index";
  ASSERT_TRUE(pair.lists->Save(file).ok());
  const auto loaded = LoadNeuralInvertedIndex(file).value();
  ExpectWhole(*loaded);
  const std::vector<float> queries = RandomVectors(random, 30, kDimension);
  const InvertedQuery query{.probes = 2, .terms = std::vector<std::vector<int32_t>>(30, {2})};
  EXPECT_EQ(loaded->Probe(queries, 4, {}, query).value(), pair.lists->Probe(queries, 4, {}, query).value());
  EXPECT_EQ(loaded->lists().ids, pair.lists->lists().ids);
  EXPECT_EQ(loaded->router().biases, pair.lists->router().biases);
  EXPECT_EQ(loaded->Vector(70), pair.lists->Vector(70));
  // It goes on: new lists have ids that no list had.
  ASSERT_TRUE(loaded->Add(Ids(900, 300), RandomVectors(random, 300, kDimension)).ok());
  ExpectWhole(*loaded);
  EXPECT_GT(loaded->lists().ids.back(), pair.lists->lists().ids.back());

  ExpectDamageIsCorrupt(file, std::filesystem::file_size(file) / 100, &LoadNeuralInvertedIndex);
}

TEST(NeuralInvertedTest, WhatIsWrongIsRefusedAndNothingIsChanged) {
  NeuralInvertedOptions options = Small(Metric::kL2);
  options.dimension = 2;
  const auto index = MakeNeuralInvertedIndex(options);
  ASSERT_TRUE(index->Add(std::vector<int64_t>{1, 2}, std::vector<float>{1, 2, 3, 4}).ok());
  ExpectRefusals(*index);
  EXPECT_EQ(index->Probe(std::vector<float>{1, 2}, 1, {}, {.probes = -1}).status().code(),
            StatusCode::kInvalidArgument);
  ExpectWhole(*index);
}

TEST(NeuralInvertedTest, EqualVectorsAreSharedOutToo) {
  const auto index = MakeNeuralInvertedIndex(Small(Metric::kL2));
  const std::vector<float> same(200 * kDimension, 1.0F);
  ASSERT_TRUE(index->Add(Ids(0, 200), same).ok());
  ExpectWhole(*index);
  EXPECT_EQ(index->Search(std::vector<float>(kDimension, 1.0F), 200, {}).value()[0].size(), 200U);
  EXPECT_EQ(index->Remove(Ids(0, 200)), 200);
  EXPECT_EQ(index->size(), 0);
  EXPECT_TRUE(index->Search(std::vector<float>(kDimension, 1.0F), 3, {}).value()[0].empty());
  ASSERT_TRUE(index->Add(Ids(0, 200), same).ok());
  ExpectWhole(*index);
}

TEST(NeuralInvertedTest, SearchesRunBesideAWriter) {
  std::mt19937_64 random(7);
  const Pair pair(Metric::kCosine);
  pair.Add(random, Ids(0, 300));
  SearchBeside(
      *pair.lists, RandomVectors(random, 8, kDimension), 3, [](const auto& ids) { EXPECT_EQ(ids.size(), 3U); },
      [&] {
        for (int64_t round = 0; round < 30; ++round) {
          const std::vector<float> more = RandomVectors(random, 40, kDimension);
          EXPECT_TRUE(pair.lists->Add(Ids(1000 + 40 * round, 40), more).ok());
          pair.lists->Remove(Ids(1000 + 40 * round, 25));
        }
      });
  ExpectWhole(*pair.lists);
}

}  // namespace
}  // namespace everlong::index
