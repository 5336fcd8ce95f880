#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../../cpp/index/heads_index.h"
#include "base_temporary_folder.h"
#include "everlong/base/parallel_for.h"
#include "index_heads_case.h"

namespace everlong::index {
namespace {

void ExpectMass(const Case& made, double tolerance = 2e-5, KeyStorage keys = KeyStorage::kBf16) {
  ExpectMass(made.Build(kCoarseFrom, keys), made, tolerance);
}

TEST(HeadsIndex, KeyHeadsAreDistinctInOrderOfUse) {
  const HeadsIndex index(kGroupedHeads, 8);
  EXPECT_EQ(index.key_heads(), (std::vector<KeyHead>{{1, 2}, {4, 2}}));
  EXPECT_EQ(index.heads(), kGroupedHeads);
}

TEST(HeadsIndex, MassIsTheDefinition) {
  uint32_t seed = 1;
  for (const auto& heads : {kOneHead, kGroupedHeads}) {
    for (const int32_t dim : {4, 20, 64, 128}) {
      for (const int32_t page_tokens : {1, 16, 31, 64, 130}) {
        SCOPED_TRACE(testing::Message() << heads.size() << " heads, D " << dim << ", pages of " << page_tokens);
        ExpectMass(MakeCase({.heads = heads, .dim = dim, .page_tokens = page_tokens, .question = 5}, ++seed));
      }
    }
  }
}

TEST(HeadsIndex, MassOverSeveralChunksOfPages) {
  ExpectMass(MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 200, .page_tokens = 16, .question = 16}, 7));
}

TEST(HeadsIndex, MassOfALongQuestionTakesSeveralPasses) {
  ExpectMass(MakeCase({.heads = kOneHead, .dim = 4, .pages = 700, .page_tokens = 2, .question = 6500}, 8));
}

TEST(HeadsIndex, MassOfSharpAttention) {
  ExpectMass(MakeCase({.heads = kGroupedHeads, .pages = 70, .question = 4, .sharpness = 30.0F}, 9), 2e-4);
}

TEST(HeadsIndex, ScoresFarFromTheFirstPagesTakeAnotherPass) {
  // A key of page 100 scores 200 and more above all of the first chunk: 2^200 is no float.
  Case made = MakeCase({.heads = kOneHead, .dim = 4, .pages = 130, .page_tokens = 8, .question = 2}, 22);
  made.q = {30, 0, 0, 0, 30, 0, 0, 0};
  made.pages[100][0] = 20;
  made.pages[120][0] = 19.75F;
  ExpectMass(made);
}

TEST(HeadsIndex, SinksFiltersAndZeroWeightsAreLeftOut) {
  Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 90, .question = 6, .sharpness = 2.0F}, 10);
  std::mt19937 random(11);
  for (size_t page = 0; page < made.pages.size(); ++page) {
    if (page % 2 == 0) made.sinks[page] = static_cast<int32_t>(random() % static_cast<uint32_t>(made.tokens[page] + 1));
    if (page % 5 == 0) made.filter.Set(static_cast<int32_t>(page), false);
    // A sink that would take all the mass if it were scored.
    if (made.sinks[page] > 0) std::fill_n(made.pages[page].begin(), made.dim, 50.0F);
  }
  made.sinks[4] = made.tokens[4];
  made.weights[1] = 0;
  made.weights[4] = 0;
  ExpectMass(made);
  const auto mass = Mass(made.Build(), made.q, made.weights, made.filter);
  EXPECT_EQ((*mass)[0], 0.0F);
  EXPECT_EQ((*mass)[4], 0.0F);
}

TEST(HeadsIndex, MassSumsToWeightsTimesHeads) {
  const Case made = MakeCase({.heads = kGroupedHeads, .pages = 40, .question = 7}, 12);
  const auto mass = Mass(made.Build(), made.q, made.weights, made.filter);
  const double sum = std::accumulate(mass->begin(), mass->end(), 0.0);
  const double expected = std::accumulate(made.weights.begin(), made.weights.end(), 0.0) * 5;
  EXPECT_NEAR(sum, expected, 1e-5 * expected);
}

TEST(HeadsIndex, PagesFarBelowTheBestHaveNoMass) {
  Case made = MakeCase({.heads = kOneHead, .dim = 4, .pages = 2, .page_tokens = 1, .question = 1}, 13);
  made.q = {100, 0, 0, 0};
  made.pages = {{100, 0, 0, 0}, {-100, 0, 0, 0}};
  made.weights = {1};
  const HeadsIndex index = made.Build();
  const auto mass = Mass(index, made.q, made.weights, made.filter);
  EXPECT_NEAR((*mass)[0], 1, 1e-6);
  EXPECT_EQ((*mass)[1], 0.0F);
  EXPECT_EQ(index.Scored(made.q, made.weights, made.filter)->size(), 1U);
}

TEST(HeadsIndex, NothingToScoreIsNoMass) {
  const Case made = MakeCase({.heads = kOneHead, .pages = 3, .question = 2}, 14);
  const HeadsIndex empty(kOneHead, 64);
  EXPECT_TRUE(Mass(empty, made.q, made.weights, made.filter)->empty());
  const HeadsIndex index = made.Build();
  const std::vector<float> zeros(3, 0.0F);
  EXPECT_EQ(*Mass(index, made.q, made.weights, PageMask(3, false)), zeros);
  EXPECT_EQ(*Mass(index, made.q, made.weights, PageMask()), zeros);
  EXPECT_EQ(*Mass(index, made.q, std::vector<float>(2, 0.0F), made.filter), zeros);
  EXPECT_EQ(*Mass(index, {}, {}, made.filter), zeros);
  HeadsIndex headless({}, 64);
  EXPECT_TRUE(Mass(headless, {}, made.weights, made.filter)->empty());
  ASSERT_TRUE(headless.Add({}, 64, 0).ok());
  EXPECT_EQ(*Mass(headless, {}, std::vector<float>{1.0F}, PageMask(1, true)), std::vector<float>{0.0F});
}

TEST(HeadsIndex, EqualPagesHaveEqualMass) {
  Case made = MakeCase({.heads = kGroupedHeads, .pages = 30, .question = 3, .sharpness = 2.0F}, 15);
  for (const size_t copy : {3U, 17U, 28U}) {
    made.pages[copy] = made.pages[9];
    made.tokens[copy] = made.tokens[9];
  }
  const auto mass = Mass(made.Build(), made.q, made.weights, made.filter);
  for (const size_t copy : {3U, 17U, 28U}) EXPECT_EQ((*mass)[copy], (*mass)[9]);
}

TEST(HeadsIndex, RefusesWhatItCannotScore) {
  const Case made = MakeCase({.heads = kGroupedHeads, .pages = 3, .question = 2}, 16);
  HeadsIndex index = made.Build();
  const auto code = [&](const std::vector<float>& q, const std::vector<float>& weights) {
    return index.Scored(q, weights, made.filter).status().code();
  };
  const auto with = [](std::vector<float> values, size_t at, float value) {
    values[at] = value;
    return values;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(code(made.q, made.weights), StatusCode::kOk);
  EXPECT_EQ(code(with(made.q, 5, kNan), made.weights), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(with(made.q, 5, kInfinity), made.weights), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(with(made.q, 5, 3e38F), made.weights), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(made.q, with(made.weights, 1, kNan)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(made.q, with(made.weights, 1, -1.0F)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(made.q, {1.0F}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1.0F}, made.weights), StatusCode::kInvalidArgument);

  const std::vector<float>& keys = made.pages[0];
  EXPECT_EQ(index.Add(keys, 63, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add({}, 0, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(keys, 64, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(keys, 64, 65).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(with(keys, 100, kNan), 64, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(with(keys, 100, -kInfinity), 64, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Add(with(keys, 100, std::numeric_limits<float>::max()), 64, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index.pages(), 3);
}

// Keys that differ along `directions` axes of no particular place, and hardly (`rest`) along all others, around a mean.
void FlattenKeys(Case& made, int32_t directions, float rest, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto dim = static_cast<size_t>(made.dim);
  std::vector<float> basis(static_cast<size_t>(made.key_heads * directions) * dim);
  std::ranges::generate(basis, [&] { return normal(random) / std::sqrt(static_cast<float>(dim)); });
  std::vector<float> mean(dim);
  std::ranges::generate(mean, [&] { return 2 * normal(random); });
  for (size_t page = 0; page < made.pages.size(); ++page) {
    const auto tokens = static_cast<size_t>(made.tokens[page]);
    for (size_t at = 0; at < static_cast<size_t>(made.key_heads) * tokens; ++at) {
      float* const key = made.pages[page].data() + at * dim;
      for (size_t i = 0; i < dim; ++i) key[i] = mean[i] + rest * normal(random);
      const float* axis = basis.data() + at / tokens * static_cast<size_t>(directions) * dim;
      for (int32_t direction = 0; direction < directions; ++direction, axis += dim) {
        const float along = 2 * normal(random);
        for (size_t i = 0; i < dim; ++i) key[i] += along * axis[i];
      }
    }
  }
}

// The exact ranking of a case, for comparing with a search by two levels.
std::vector<int32_t> BestPages(const Case& made, size_t count) {
  const std::vector<double> mass = made.Reference();
  std::vector<int32_t> pages(mass.size());
  std::iota(pages.begin(), pages.end(), 0);
  std::ranges::stable_sort(
      pages, [&](int32_t a, int32_t b) { return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)]; });
  pages.resize(count);
  return pages;
}

TEST(HeadsIndex, TwoLevelsFindWhatOneDoes) {
  // 64 dimensions keep 24 axes: keys that differ along 20 lose little.
  Case made = MakeCase({.heads = kGroupedHeads, .pages = 2000, .page_tokens = 8, .question = 6, .sharpness = 3.0F}, 30);
  FlattenKeys(made, 20, 0.02F, 31);
  for (size_t page = 0; page < made.pages.size(); page += 7) made.filter.Set(static_cast<int32_t>(page), false);
  const auto hits = Search(made.Build(100), made.q, made.weights, 2000, made.filter);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  EXPECT_LT(hits->size(), 200U) << "a tenth";
  const std::vector<double> reference = made.Reference();
  int32_t found = 0;
  for (const int32_t page : BestPages(made, 16)) {
    const auto hit = std::ranges::find(*hits, page, &Hit::page);
    if (hit == hits->end()) continue;
    ++found;
    // What the pages that were left out have of the softmax is an estimate.
    EXPECT_NEAR(hit->score, reference[static_cast<size_t>(page)], 0.4 * reference[static_cast<size_t>(page)]);
  }
  EXPECT_GE(found, 15) << "four bits lose little";
}

TEST(HeadsIndex, TwoLevelsKnowWhatTheOtherPagesHaveOfTheSoftmax) {
  // Most of the softmax lies in pages that are left out. The codes know the largest score of a page's 32 tokens alone.
  Case made = MakeCase({.heads = kOneHead, .pages = 2000, .page_tokens = 32, .question = 4}, 50);
  FlattenKeys(made, 20, 0.02F, 51);
  const auto hits = Search(made.Build(100), made.q, made.weights, 2000, made.filter);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  EXPECT_LT(hits->size(), 500U);
  const std::vector<double> reference = made.Reference();
  double exact = 0;
  double found = 0;
  for (const Hit& hit : *hits) {
    exact += reference[static_cast<size_t>(hit.page)];
    found += hit.score;
  }
  // Of 512 sampled pages the error is a few per cent. From the largest scores alone it was half.
  EXPECT_NEAR(found, exact, 0.1 * exact);
}

TEST(HeadsIndex, TwoLevelsScoreTokensThatTheFirstDoesNotAskBy) {
  // The eight heaviest of twenty tokens carry 93 % of the weight. All of them count in the scores.
  Case made =
      MakeCase({.heads = kGroupedHeads, .pages = 2000, .page_tokens = 8, .question = 20, .sharpness = 3.0F}, 52);
  FlattenKeys(made, 20, 0.02F, 53);
  for (size_t token = 0; token < made.weights.size(); ++token) made.weights[token] = token % 5 < 2 ? 10.0F : 0.5F;
  const auto hits = Search(made.Build(100), made.q, made.weights, 2000, made.filter);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  const std::vector<double> reference = made.Reference();
  int32_t found = 0;
  for (const int32_t page : BestPages(made, 16)) {
    const auto hit = std::ranges::find(*hits, page, &Hit::page);
    if (hit == hits->end()) continue;
    ++found;
    EXPECT_NEAR(hit->score, reference[static_cast<size_t>(page)], 0.2 * reference[static_cast<size_t>(page)]);
  }
  EXPECT_GE(found, 15);
}

TEST(HeadsIndex, TwoLevelsAreNotForFewPages) {
  Case made = MakeCase({.heads = kGroupedHeads, .pages = 300, .page_tokens = 8, .question = 6}, 32);
  for (int32_t page = 150; page < 300; ++page) made.filter.Set(page, false);
  const HeadsIndex one = made.Build();
  const HeadsIndex two = made.Build(200);
  EXPECT_GT(two.bytes(), one.bytes());
  const auto exact = Search(one, made.q, made.weights, 300, made.filter);
  const auto hits = Search(two, made.q, made.weights, 300, made.filter);
  EXPECT_EQ(hits->size(), 150U);
  EXPECT_EQ(*hits, *exact);
}

TEST(HeadsIndex, TwoLevelsOfAnyShape) {
  uint32_t seed = 33;
  for (const int32_t dim : {1, 2, 3, 7, 20, 128}) {
    Case made = MakeCase({.heads = kGroupedHeads, .dim = dim, .pages = 200, .page_tokens = 5, .question = 2}, ++seed);
    for (size_t page = 0; page < made.pages.size(); page += 3) made.sinks[page] = made.tokens[page];
    const auto hits = Search(made.Build(60), made.q, made.weights, 200, made.filter);
    ASSERT_TRUE(hits.ok()) << hits.status().ToString();
    EXPECT_EQ(hits->size(), 64U);  // the fewest that are scored exactly
    for (const Hit& hit : *hits) EXPECT_NE(hit.page % 3, 0);
  }
}

TEST(HeadsIndex, NoHeadsHaveNoSecondLevel) {
  const Case made = MakeCase({.heads = {}, .dim = 8, .pages = 100, .page_tokens = 4, .question = 1}, 40);
  EXPECT_TRUE(Search(made.Build(50), made.q, made.weights, 100, made.filter)->empty());
}

TEST(HeadsIndex, KeysTooLongForTheirAxesAreScoredExactly) {
  Case made = MakeCase({.heads = kOneHead, .dim = 8, .pages = 200, .page_tokens = 4, .question = 1}, 41);
  made.pages[70][3] = 1e30F;
  std::ranges::fill(made.q, 1e-20F);
  const auto hits = Search(made.Build(50), made.q, made.weights, 200, made.filter);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  ASSERT_FALSE(hits->empty());
  EXPECT_EQ((*hits)[0].page, 70);
}

class HeadsIndexKeysTest : public testing::TestWithParam<KeyStorage> {};

TEST_P(HeadsIndexKeysTest, MassIsTheDefinitionOverWhatIsKept) {
  uint32_t seed = 60;
  for (const auto& heads : {kOneHead, kGroupedHeads}) {
    for (const int32_t dim : {1, 3, 5, 6, 64}) {
      for (const int32_t page_tokens : {1, 31, 64, 70}) {
        SCOPED_TRACE(testing::Message() << heads.size() << " heads, D " << dim << ", pages of " << page_tokens);
        Case made = MakeCase({.heads = heads, .dim = dim, .page_tokens = page_tokens, .question = 5}, ++seed);
        for (size_t page = 0; page < made.pages.size(); page += 2) {
          made.sinks[page] = static_cast<int32_t>(seed) % made.tokens[page];
        }
        ExpectMass(made, 2e-5, GetParam());
      }
    }
  }
}

TEST_P(HeadsIndexKeysTest, MassOfHugeAndTinyKeys) {
  for (const int exponent : {-95, -40, 60, 95}) {
    SCOPED_TRACE(exponent);
    ExpectMass(MakeScaledCase(exponent), 2e-5, GetParam());
  }
}

TEST_P(HeadsIndexKeysTest, QueriesWhoseScoresOverflowAreRefused) {
  Case made = MakeCase({.heads = kOneHead, .dim = 8, .pages = 3, .page_tokens = 40, .question = 1}, 62);
  made.pages[1][9] = 3e38F;
  const HeadsIndex index = made.Build(kCoarseFrom, GetParam());
  std::ranges::fill(made.q, 1.0F);
  EXPECT_EQ(Mass(index, made.q, made.weights, made.filter).status().code(), StatusCode::kInvalidArgument);
  std::ranges::fill(made.q, 1e-30F);
  EXPECT_TRUE(Mass(index, made.q, made.weights, made.filter).ok());
}

TEST_P(HeadsIndexKeysTest, FindsThePagesThatBf16Does) {
  Case made = MakeCase({.heads = kGroupedHeads, .pages = 600, .question = 8, .sharpness = 2.0F}, 63);
  FlattenKeys(made, 20, 0.1F, 64);
  const auto best = Search(made.Build(), made.q, made.weights, 16, made.filter);
  const auto found = Search(made.Build(kCoarseFrom, GetParam()), made.q, made.weights, 16, made.filter);
  const auto same = std::ranges::count_if(
      *found, [&](const Hit& hit) { return std::ranges::find(*best, hit.page, &Hit::page) != best->end(); });
  EXPECT_GE(same, 14);
  EXPECT_EQ(found->front().page, best->front().page);
}

TEST_P(HeadsIndexKeysTest, TwoLevelsFindWhatOneDoes) {
  Case made = MakeCase({.heads = kOneHead, .pages = 1000, .page_tokens = 8, .question = 1, .sharpness = 3.0F}, 65);
  FlattenKeys(made, 20, 0.02F, 66);
  const auto one = Search(made.Build(kCoarseFrom, GetParam()), made.q, made.weights, 16, made.filter);
  const auto two = Search(made.Build(100, GetParam()), made.q, made.weights, 16, made.filter);
  ASSERT_EQ(two->size(), one->size());
  for (size_t rank = 0; rank < one->size(); ++rank) EXPECT_EQ((*two)[rank].page, (*one)[rank].page);
}

TEST_P(HeadsIndexKeysTest, WhatIsSavedComesBack) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 13, .pages = 40, .page_tokens = 70, .question = 4}, 67);
  const HeadsIndex index = made.Build(kCoarseFrom, GetParam());
  std::vector<int32_t> every(40);
  std::iota(every.begin(), every.end(), 0);
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "heads";
  ASSERT_TRUE(index.Save(file, every).ok());
  const std::vector<uint8_t> kept(40, 1);
  const HeadsOptions options{kCoarseFrom, GetParam()};
  auto loaded = LoadHeads(file, made.heads, made.dim, OrdinalsOf(kept), options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->options().keys, GetParam());
  EXPECT_LT(loaded->bytes(), index.bytes() / 4) << "its keys are in the file";
  EXPECT_EQ(*Mass(*loaded, made.q, made.weights, made.filter), *Mass(index, made.q, made.weights, made.filter));
  ASSERT_TRUE(loaded->Add(made.pages[0], made.tokens[0], 0).ok());

  // Every second page, as where blocks were forgotten.
  std::vector<uint8_t> some(40, 0);
  PageMask filter(40, false);
  for (size_t page = 0; page < some.size(); page += 2) {
    some[page] = 1;
    filter.Set(static_cast<int32_t>(page), true);
  }
  const auto fewer = LoadHeads(file, made.heads, made.dim, OrdinalsOf(some), options);
  ASSERT_TRUE(fewer.ok()) << fewer.status().ToString();
  const auto of_some = Mass(*fewer, made.q, made.weights, PageMask(20, true));
  const auto of_all = Mass(index, made.q, made.weights, filter);
  for (size_t page = 0; page < of_some->size(); ++page) EXPECT_NEAR((*of_some)[page], (*of_all)[2 * page], 1e-6);

  for (const KeyStorage other : kKeyStorages) {
    if (other == GetParam()) continue;
    const auto refused = LoadHeads(file, made.heads, made.dim, OrdinalsOf(kept), {kCoarseFrom, other});
    EXPECT_EQ(refused.status().code(), StatusCode::kCorrupt);
  }
}

TEST_P(HeadsIndexKeysTest, BytesFollowTheKind) {
  HeadsIndex index(kGroupedHeads, 64, {kCoarseFrom, GetParam()});
  const std::vector<float> keys(size_t{2} * 64 * 64, 1.0F);
  for (int page = 0; page < 2000; ++page) ASSERT_TRUE(index.Add(keys, 64, 0).ok());
  // 2 key heads of 64: 256 bytes a token in bf16; 128 in bytes, and scales of 8 bytes a token.
  const int64_t token = GetParam() == KeyStorage::kBf16 ? 256 : 136;
  EXPECT_EQ(index.PageBytes(64), token * 64);
  EXPECT_GE(index.bytes(), token * 64 * 2000);
  EXPECT_LE(index.bytes(), token * 64 * 2000 * 3 / 2);
}

INSTANTIATE_TEST_SUITE_P(Storages, HeadsIndexKeysTest, testing::ValuesIn(kKeyStorages),
                         [](const auto& parameter) { return std::string(NameOf(parameter.param)); });

// One real thread for every two chunks, however unlike the parts are.
void ManyThreads(int64_t begin, int64_t end, int64_t, const void* context, ParallelBody body) {
  std::vector<std::thread> threads;
  for (int64_t first = begin; first < end;) {
    const int64_t last = std::min(end, first + 1 + (first - begin) % 3);
    threads.emplace_back([=] { body(context, first, last); });
    first = last;
  }
  for (std::thread& thread : threads) thread.join();
}

class HookedThreads {
 public:
  HookedThreads() { SetParallelForHook(&ManyThreads); }
  ~HookedThreads() { SetParallelForHook(nullptr); }
  HookedThreads(const HookedThreads&) = delete;
  HookedThreads& operator=(const HookedThreads&) = delete;
};

TEST(HeadsIndex, ResultDoesNotDependOnThreads) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 32, .pages = 333, .page_tokens = 40, .question = 9}, 18);
  for (const KeyStorage keys : kKeyStorages) {
    const HeadsIndex index = made.Build(kCoarseFrom, keys);
    const auto serial = Mass(index, made.q, made.weights, made.filter);
    const HookedThreads hooked;
    EXPECT_EQ(*Mass(index, made.q, made.weights, made.filter), *serial);
  }
}

TEST(HeadsIndex, SearchesRunBesideEachOther) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 100, .page_tokens = 32, .question = 4}, 19);
  const HeadsIndex index = made.Build();
  const auto expected = Mass(index, made.q, made.weights, made.filter);
  std::vector<std::vector<float>> found(4);
  std::vector<std::thread> threads;
  for (auto& mass : found) {
    threads.emplace_back([&] { mass = Mass(index, made.q, made.weights, made.filter).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mass : found) EXPECT_EQ(mass, *expected);
}

TEST(HeadsIndex, ForgottenPagesAreEmptyAndTheirRoomIsUsedAgain) {
  Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 300, .page_tokens = 32, .question = 4}, 20);
  for (const int32_t coarse_from : {kCoarseFrom, 100}) {
    HeadsIndex index = made.Build(coarse_from);
    const int64_t bytes = index.bytes();
    Case left = made;
    for (int32_t page = 0; page < 300; page += 2) {
      index.Forget(page);
      left.filter.Set(page, false);
    }
    index.Forget(1000);
    const bool is_exact = coarse_from == kCoarseFrom;
    if (is_exact) ExpectMass(index, left, 2e-5);
    EXPECT_EQ(*Mass(index, made.q, made.weights, made.filter), *Mass(index, made.q, made.weights, left.filter))
        << "they have no tokens, whoever asks";
    for (size_t page = 0; page < 300; page += 2) {
      ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    }
    EXPECT_LE(index.bytes(), bytes + bytes / 40) << "keys lie where others lay";
    EXPECT_EQ(index.pages(), 450);
    if (!is_exact) continue;
    const auto again = Mass(index, made.q, made.weights, PageMask(450, true));
    const auto before = Mass(made.Build(), made.q, made.weights, made.filter);
    for (size_t page = 0; page < 300; ++page) {
      const size_t now = page % 2 == 1 ? page : 300 + page / 2;
      EXPECT_NEAR((*again)[now], (*before)[page], 1e-5 * (*before)[page]);
    }
  }
}

// A key that is too long ends the second level. Pages behind it are in the first one alone.
TEST(HeadsIndex, PagesBehindAKeyThatIsTooLongForTheSecondLevelAreForgotten) {
  HeadsIndex index({{0, 0, 0}}, 16, {.coarse_from = 8});
  std::vector<float> keys(size_t{4} * 16, 0.5F);
  for (int page = 0; page < 20; ++page) ASSERT_TRUE(index.Add(keys, 4, 0).ok());
  ASSERT_TRUE(index.Add(std::vector<float>(size_t{4} * 16, 1e19F), 4, 0).ok());
  for (int page = 0; page < 5000; ++page) ASSERT_TRUE(index.Add(keys, 4, 0).ok());
  for (int32_t page = index.pages(); page-- > 0;) index.Forget(page);
  const std::vector<float> query(16, 0.1F);
  EXPECT_TRUE(index.Scored(query, std::vector<float>{1.0F}, PageFilter::All(index.pages()))->empty());
}

TEST(HeadsIndex, NumbersMayBeLeftOut) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 200, .page_tokens = 8, .question = 3}, 21);
  for (const int32_t coarse_from : {kCoarseFrom, 100}) {
    HeadsIndex index(made.heads, made.dim, {coarse_from});
    for (size_t page = 0; page < 200; ++page) {
      index.SkipTo(static_cast<int32_t>(3 * page));
      ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    }
    index.SkipTo(5);
    EXPECT_EQ(index.pages(), 598);
    const auto mass = Mass(index, made.q, made.weights, PageFilter::All(598));
    const auto expected = Mass(made.Build(), made.q, made.weights, made.filter);
    for (size_t page = 0; page < 598; ++page) {
      if (page % 3 == 0 && coarse_from != kCoarseFrom) continue;  // the coarse level leaves some out
      EXPECT_EQ((*mass)[page], page % 3 == 0 ? (*expected)[page / 3] : 0.0F);
    }
  }
}

// One thread adds, two search what it has told them of; at half of it the second level comes.
TEST(HeadsIndex, SearchesRunBesideAnAddAndTheSecondLevel) {
  Case made = MakeCase({.heads = kOneHead, .pages = 600, .page_tokens = 8, .question = 1, .sharpness = 3.0F}, 23);
  FlattenKeys(made, 20, 0.02F, 24);
  constexpr int32_t kLimit = 300;
  const HeadsIndex exact = made.Build();
  std::vector<std::vector<Hit>> expected;  // of the first pages, in tens
  for (int32_t pages = 0; pages <= 600; pages += 10) {
    expected.push_back(Search(exact, made.q, made.weights, 8, PageFilter::All(pages)).value());
  }
  HeadsIndex index(made.heads, made.dim, {kLimit});
  std::atomic<int32_t> added = 0;
  std::vector<std::thread> searchers;
  for (int i = 0; i < 2; ++i) {
    searchers.emplace_back([&] {
      for (int32_t pages = 0; pages < 600;) {
        pages = added;
        const auto hits = Search(index, made.q, made.weights, 8, PageFilter::All(pages));
        ASSERT_TRUE(hits.ok());
        const std::vector<Hit>& of = expected[static_cast<size_t>(pages / 10)];
        ASSERT_EQ(hits->size(), of.size());
        for (size_t rank = 0; rank < of.size(); ++rank) {
          EXPECT_EQ((*hits)[rank].page, of[rank].page);
          if (pages < kLimit) {
            EXPECT_EQ((*hits)[rank].score, of[rank].score);
          }
        }
      }
    });
  }
  for (size_t page = 0; page < 600; ++page) {
    ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    if (page % 10 == 9) added = static_cast<int32_t>(page + 1);
  }
  for (std::thread& searcher : searchers) searcher.join();
}

}  // namespace
}  // namespace everlong::index
