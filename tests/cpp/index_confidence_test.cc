#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "everlong/index/confidence.h"
#include "everlong/index/fusion.h"
#include "everlong/index/part_kinds.h"
#include "everlong/index/ranking.h"

namespace everlong::index {
namespace {

constexpr size_t kHeadsPage = 0;
constexpr size_t kLexicalGroup = 3;
constexpr size_t kMeaningPage = 4;

// The fitted numbers, as data.
struct Row {
  IndexParts parts;
  double base = 0;
  std::array<double, kTellingRankings.size()> best{};
  double odds = 0;
};
constexpr Row kRows[] = {
#include "../../cpp/index/confidence_weights.inc"
};

PageGroup GroupOf(std::vector<int32_t> pages) {
  PageGroup group;
  group.pages = std::move(pages);
  return group;
}

Ranking RankingOf(IndexPart part, Granularity granularity, std::vector<Hit> hits, float whole) {
  const PartKind& kind = KindOf(part);
  Ranking ranking;
  ranking.part = part;
  ranking.granularity = granularity;
  ranking.hits = std::move(hits);
  ranking.whole = whole;
  ranking.voice = granularity == Granularity::kGroup ? kind.group_voice : kind.voice;
  return ranking;
}

Signs DrawnSigns(std::mt19937_64& random, const IndexParts& parts) {
  std::uniform_real_distribution<double> share(0, 1);
  Signs signs;
  signs.any = true;
  signs.parts = parts;
  for (size_t at = 0; at < signs.best.size(); ++at) {
    if (parts.Has(kTellingRankings[at].part)) signs.best[at] = share(random);
  }
  signs.odds = 20 * share(random) - 10;
  return signs;
}

TEST(Confidence, IsTheLogisticOfTheFittedSum) {
  std::mt19937_64 random(1);
  for (const Row& row : kRows) {
    for (int round = 0; round < 20; ++round) {
      const Signs signs = DrawnSigns(random, row.parts);
      long double sum = row.base + static_cast<long double>(row.odds) * signs.odds;
      for (size_t at = 0; at < row.best.size(); ++at) sum += static_cast<long double>(row.best[at]) * signs.best[at];
      const long double expected = 1 / (1 + std::exp(-sum));
      ASSERT_TRUE(Confidence(signs).has_value());
      EXPECT_NEAR(*Confidence(signs), static_cast<double>(expected), 1e-12);
    }
  }
}

TEST(Confidence, EverySetWithoutEmbeddingsHasARowAndEveryOtherIsHeardByTheLargestWithinIt) {
  const std::array<IndexPart, 5> telling{IndexPart::kHeads, IndexPart::kLexical, IndexPart::kWords, IndexPart::kMeaning,
                                         IndexPart::kEncoder};
  std::mt19937_64 random(4);
  for (size_t set = 1; set < size_t{1} << telling.size(); ++set) {
    IndexParts parts;
    for (size_t at = 0; at < telling.size(); ++at) {
      if ((set >> at & 1) != 0) parts |= {telling[at]};
    }
    EXPECT_EQ(std::ranges::count(kRows, parts, &Row::parts), 1) << set;
    const Signs signs = DrawnSigns(random, parts);
    Signs with_embeddings = signs;
    with_embeddings.parts |= {IndexPart::kEmbedding};
    if (std::ranges::count(kRows, with_embeddings.parts, &Row::parts) == 0) {
      EXPECT_EQ(Confidence(with_embeddings), Confidence(signs));
    }
  }
}

TEST(Confidence, IsAProbabilityAndGrowsWithEverySign) {
  std::mt19937_64 random(2);
  for (const Row& row : kRows) {
    for (int round = 0; round < 50; ++round) {
      const Signs signs = DrawnSigns(random, row.parts);
      const double before = *Confidence(signs);
      EXPECT_GE(before, 0);
      EXPECT_LE(before, 1);
      for (size_t at = 0; at <= signs.best.size(); ++at) {
        Signs more = signs;
        (at < signs.best.size() ? more.best[at] : more.odds) += 0.3;
        EXPECT_GE(*Confidence(more), before);
      }
    }
    Signs extreme = DrawnSigns(random, row.parts);
    for (const double odds : {-1e300, 1e300}) {
      extreme.odds = odds;
      EXPECT_FALSE(std::isnan(*Confidence(extreme)));
    }
  }
}

TEST(Confidence, NothingThatCameBackIsZeroAndPartsThatDoNotTellHaveNone) {
  EXPECT_EQ(Confidence(SignsOf({}, {}, {}, 100)), 0.0);
  const std::vector<Ranking> rankings{RankingOf(IndexPart::kHnsw, Granularity::kPage, {{3, 0.9F}}, 1)};
  const std::vector<PageGroup> groups{GroupOf({2, 3, 4})};
  const Signs signs = SignsOf(rankings, LogitFusion(rankings, 100, 10), groups, 100);
  EXPECT_TRUE(signs.parts.empty());
  EXPECT_EQ(Confidence(signs), std::nullopt);
}

TEST(Signs, AreOfThePagesThatCameBackAlone) {
  const std::vector<Ranking> rankings{
      RankingOf(IndexPart::kHeads, Granularity::kPage, {{50, 0.9F}, {11, 0.36F}, {10, 0.25F}}, 1),
      RankingOf(IndexPart::kLexical, Granularity::kGroup, {{10, 8.0F}, {50, 6.0F}}, 32),
      RankingOf(IndexPart::kMeaning, Granularity::kPage, {{50, 0.8F}, {30, 0.7F}}, 1),
      RankingOf(IndexPart::kMeanPool, Granularity::kPage, {{10, 1.0F}}, 1),
  };
  const std::vector<FusedHit> fused{{50, 4.0F, {}}, {10, 2.0F, {}}, {11, 1.0F, {}}, {30, 0.5F, {}}};
  const std::vector<PageGroup> groups{GroupOf({9, 10, 11}), GroupOf({70})};
  const Signs signs = SignsOf(rankings, fused, groups, 200);
  EXPECT_EQ(signs.parts, IndexParts({IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeaning}));
  std::array<double, kTellingRankings.size()> best{};
  best[kHeadsPage] = 0.36;    // a share
  best[kLexicalGroup] = 0.5;  // the root of one
  for (size_t at = 0; at < best.size(); ++at) EXPECT_NEAR(signs.best[at], best[at], 1e-7) << at;
  EXPECT_EQ(signs.best[kMeaningPage], 0) << "it names none of them";
  // Of 200 pages four are named; two of those that came back are not.
  const double these = std::exp(2.0) + std::exp(1.0) + 2;
  const double others = std::exp(4.0) + std::exp(0.5) + 194 + 1;
  EXPECT_NEAR(signs.odds, std::log(these / others), 1e-12);
}

TEST(Signs, AMemoryThatCameBackWholeHasFiniteOdds) {
  const std::vector<Ranking> rankings{RankingOf(IndexPart::kLexical, Granularity::kPage, {{0, 30.0F}}, 30)};
  const std::vector<FusedHit> fused = LogitFusion(rankings, 1, 10);
  const Signs signs = SignsOf(rankings, fused, std::vector{GroupOf({0})}, 1);
  EXPECT_NEAR(signs.odds, fused[0].score, 1e-6) << "against the one page that nobody names";
}

TEST(Signs, OddsOfAnyScoresAreThoseOfTheirSoftmax) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> score(0, 30);
  for (int round = 0; round < 30; ++round) {
    std::vector<FusedHit> fused;
    for (int32_t page = 0; page < 40; ++page) fused.push_back({page, score(random), {}});
    const std::vector<PageGroup> groups{GroupOf({5, 6, 7}), GroupOf({20, 21})};
    long double these = 0;
    long double others = 60 + 1;
    for (const FusedHit& hit : fused) {
      const bool here = (hit.page >= 5 && hit.page <= 7) || hit.page == 20 || hit.page == 21;
      (here ? these : others) += std::exp(static_cast<long double>(hit.score));
    }
    const Signs signs = SignsOf({}, fused, groups, 100);
    EXPECT_NEAR(signs.odds, static_cast<double>(std::log(these) - std::log(others)), 1e-9);
  }
}

TEST(Shares, AddUpToOneAndFollowTheScores) {
  const std::vector<FusedHit> fused{{1, 3.0F, {}}, {9, 2.0F, {}}, {2, 1.0F, {}}, {30, 900.0F, {}}};
  const std::vector<double> shares = SharesOf(fused, std::vector{GroupOf({1, 2}), GroupOf({9})});
  ASSERT_EQ(shares.size(), 2U);
  const double whole = std::exp(3.0) + std::exp(2.0) + std::exp(1.0);
  EXPECT_NEAR(shares[0] + shares[1], 1, 1e-12) << "however far another page stands out";
  EXPECT_NEAR(shares[1], std::exp(2.0) / whole, 1e-12);
}

}  // namespace
}  // namespace everlong::index
