#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "everlong/index/fusion.h"
#include "everlong/index/index_part.h"
#include "everlong/index/part_kinds.h"

namespace everlong::index {
namespace {

constexpr int32_t kPages = 2'000;  // searched

// Each ranking speaks as its part does, in its granularity.
std::vector<FusedHit> Fused(std::vector<Ranking> rankings, int32_t pages, int32_t k) {
  for (Ranking& ranking : rankings) {
    const PartKind& kind = KindOf(ranking.part);
    ranking.voice = ranking.granularity == Granularity::kGroup ? kind.group_voice : kind.voice;
  }
  return LogitFusion(rankings, pages, k);
}

float ScoreOf(const std::vector<FusedHit>& fused, int32_t page) {
  return std::ranges::find(fused, page, &FusedHit::page)->score;
}

TEST(IndexParts, AreNamedAndCollected) {
  IndexParts collected;
  for (const IndexPart part : AllIndexParts()) {
    EXPECT_EQ(ParseIndexPart(NameOf(part)), part);
    EXPECT_FALSE(collected.Has(part));
    collected |= {part};
    EXPECT_TRUE(collected.Has(part));
  }
  EXPECT_EQ(ParseIndexPart("head"), std::nullopt);
  EXPECT_TRUE(IndexParts().empty());
  EXPECT_NE(collected, IndexParts({IndexPart::kHeads}));
}

TEST(LogitFusion, PartsWithoutScoresAddTheirReciprocalRanks) {
  const std::vector<Ranking> rankings{
      {IndexPart::kHnsw, {{10, 9.0F}, {20, 8.0F}, {30, 7.0F}}},
      {IndexPart::kMeanPool, {{30, 0.5F}, {10, 0.4F}}},
  };
  const auto fused = Fused(rankings, kPages, 10);
  ASSERT_EQ(fused.size(), 3U);
  EXPECT_EQ(fused[0].page, 10);
  EXPECT_FLOAT_EQ(fused[0].score, 1.0F / 61 + 1.0F / 62);
  EXPECT_EQ(fused[0].found_by, IndexParts({IndexPart::kHnsw, IndexPart::kMeanPool}));
  EXPECT_EQ(fused[1].page, 30);
  EXPECT_FLOAT_EQ(fused[1].score, 1.0F / 61 + 1.0F / 63);
  EXPECT_EQ(fused[2].page, 20);
  EXPECT_FLOAT_EQ(fused[2].score, 1.0F / 62);
  EXPECT_EQ(fused[2].found_by, IndexParts({IndexPart::kHnsw}));
}

// The formula of fusion.h, page by page, of evidence that is given in both ways.
TEST(LogitFusion, IsTheLogOddsOfAMixtureOfTwoLogits) {
  constexpr int32_t kSearched = 50;
  Ranking pages{IndexPart::kHeads, {{1, 9.0F}, {2, 4.0F}}, 100.0F, 1.0F};
  pages.voice = {Evidence{10.0, 3.0}, Voice::Grows::kAsRoot};
  Ranking groups{IndexPart::kLexical, {{3, 16.0F}, {1, 4.0F}}, 25.0F};
  groups.voice = {Evidence{0.0, 5.0}, Voice::Grows::kAsRoot};
  Ranking cosines{IndexPart::kMeaning, {{4, 0.49F}, {1, 0.25F}}, 1.0F, 0.25F};
  cosines.voice = {Evidence{8.0, 2.0}, Voice::Grows::kAsShare};
  const std::vector<Ranking> rankings{pages, groups, cosines};
  const auto fused = LogitFusion(rankings, kSearched, 10);
  ASSERT_EQ(fused.size(), 4U);
  const std::map<int32_t, Evidence> evidence{
      {1, {10 * 0.2, 3 * 0.2 + 5 * 0.4}}, {2, {10 * 0.1, 3 * 0.1}}, {3, {0, 5 * 0.8}}, {4, {8 * 0.24, 2 * 0.24}}};
  Evidence all{kSearched - 4, kSearched - 4};
  for (const auto& [page, of] : evidence) {
    all.statement += std::exp(of.statement);
    all.prose += std::exp(of.prose);
  }
  constexpr double kStatements = 0.7;
  const auto chance = [&all](const Evidence& of) {
    return kStatements * std::exp(of.statement) / all.statement + (1 - kStatements) * std::exp(of.prose) / all.prose;
  };
  for (const auto& [page, of] : evidence) {
    EXPECT_NEAR(ScoreOf(fused, page), std::log(chance(of) / chance({0, 0})), 1e-5) << page;
  }
}

TEST(LogitFusion, EvidenceRisesWithTheShareAndIsNeverAgainstAPage) {
  for (const IndexPart part : {IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeaning, IndexPart::kEmbedding}) {
    float before = std::numeric_limits<float>::infinity();
    for (int percent = 100; percent >= 0; percent -= 5) {
      const std::vector<Ranking> ranking{{part, {{1, static_cast<float>(percent) * 0.3F}}, 30.0F}};
      const auto fused = Fused(ranking, kPages, 1);
      ASSERT_EQ(fused.size(), 1U);
      EXPECT_LT(fused[0].score, before) << NameOf(part) << " at " << percent;
      before = fused[0].score;
    }
    EXPECT_EQ(before, 0) << NameOf(part);
    EXPECT_EQ(Fused(std::vector<Ranking>{{part, {{1, -0.5F}}, 1.0F}}, kPages, 1)[0].score, 0) << "a negative cosine";
    EXPECT_EQ(Fused(std::vector<Ranking>{{part, {{1, 0.5F}}, 0.0F}}, kPages, 1)[0].score, 0) << "nothing was asked for";
  }
}

TEST(LogitFusion, APartThatSeesTheSameInManyPagesSaysLittle) {
  for (const IndexPart part : {IndexPart::kHeads, IndexPart::kLexical, IndexPart::kEmbedding}) {
    float before = std::numeric_limits<float>::infinity();
    for (const float unnamed : {0.0F, 1.0F, 2.0F, 5.0F, 8.0F, 10.0F}) {
      const std::vector<Ranking> ranking{{part, {{1, 10.0F}}, 30.0F, unnamed}};
      const float score = Fused(ranking, kPages, 1)[0].score;
      EXPECT_LT(score, before) << NameOf(part) << " beside " << unnamed;
      before = score;
    }
    EXPECT_EQ(before, 0) << NameOf(part);
  }
}

// "What is the best thing to do in Dallas?" over books: heads see the page (7), words see pages that speak of the best
// thing to do elsewhere; scores as they were measured.
TEST(LogitFusion, WordsOfTheFormDoNotCrowdOutTheHeadsPage) {
  const std::vector<Ranking> rankings{
      {IndexPart::kHeads, {{7, 4.12F}, {20, 1.59F}, {21, 1.28F}, {22, 1.2F}, {1, 0.92F}}, 149.6F},
      {IndexPart::kLexical,
       {{1, 19.02F}, {2, 14.03F}, {3, 14.0F}, {4, 13.55F}, {5, 11.1F}, {6, 11.09F}, {7, 8.75F}},
       25.9F}};
  const auto fused = Fused(rankings, kPages, 4);
  EXPECT_EQ(fused[0].page, 7);
  EXPECT_EQ(fused[1].page, 1);
}

// A question in other words than the text: the encoder sees the page (5), and the heads look at another (7) by chance.
TEST(LogitFusion, AChanceShareOfOnePageDoesNotCrowdOutWhatTheEncoderSees) {
  const std::vector<Ranking> rankings{
      {IndexPart::kHeads, {{7, 4.12F}, {20, 1.59F}, {21, 1.28F}, {22, 1.2F}, {1, 0.92F}}, 149.6F},
      {IndexPart::kEncoder, {{5, 1.3F}, {6, 1.1F}, {7, 1.0F}}, 2.0F, 1.0F}};
  const auto fused = Fused(rankings, kPages, 4);
  EXPECT_EQ(fused[0].page, 5);
  EXPECT_EQ(fused[1].page, 6);
}

// Two parts without an idea rank 64 pages of their own, flatly; the third sees its pages well.
TEST(LogitFusion, APartThatSeesNothingYields) {
  std::vector<Ranking> rankings{
      {IndexPart::kHeads, {}, 100.0F}, {IndexPart::kLexical, {}, 40.0F}, {IndexPart::kEmbedding, {}, 1.0F}};
  for (int32_t rank = 0; rank < 64; ++rank) {
    const auto step = static_cast<float>(rank);
    rankings[0].hits.push_back({100 + rank, 1.0F - 0.01F * step});
    rankings[1].hits.push_back({200 + rank, 8.0F - 0.05F * step});
    rankings[2].hits.push_back({300 + rank, 0.48F - 0.002F * step});
  }
  for (Ranking& ranking : rankings) ranking.unnamed = ranking.hits.back().score;
  const auto fused = Fused(rankings, kPages, 4);
  ASSERT_EQ(fused.size(), 4U);
  for (int32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(fused[static_cast<size_t>(rank)].page, 300 + rank);

  // The same for a question that words and heads see: theirs is the first page, whoever else is sure of another.
  rankings[0].hits.insert(rankings[0].hits.begin(), {7, 20.0F});
  rankings[1].hits.insert(rankings[1].hits.begin(), {7, 36.0F});
  EXPECT_EQ(Fused(rankings, kPages, 4)[0].page, 7);
}

// A statement stands out in one page alone, prose in a group: the way in which a page stands out further decides.
TEST(LogitFusion, TheWayInWhichAPageStandsOutDecides) {
  Ranking pages{IndexPart::kMeaning, {{1, 0.6F}, {2, 0.42F}, {3, 0.41F}}, 1.0F, 0.4F};
  Ranking groups{IndexPart::kMeaning, {{2, 0.62F}, {3, 0.61F}, {1, 0.60F}}, 1.0F, 0.5F};
  groups.granularity = Granularity::kGroup;
  EXPECT_EQ(Fused({pages, groups}, kPages, 3)[0].page, 1);
  pages.hits = {{1, 0.44F}, {2, 0.43F}, {3, 0.42F}};
  groups.hits = {{2, 0.8F}, {3, 0.6F}, {1, 0.55F}};
  EXPECT_EQ(Fused({pages, groups}, kPages, 3)[0].page, 2);
}

TEST(LogitFusion, TiesAndK) {
  const std::vector<Ranking> rankings{{IndexPart::kHnsw, {{7, 1.0F}, {5, 1.0F}}},
                                      {IndexPart::kMeanPool, {{5, 1.0F}, {7, 1.0F}}}};
  const auto fused = Fused(rankings, kPages, 10);
  ASSERT_EQ(fused.size(), 2U);
  EXPECT_EQ(fused[0].page, 5);
  EXPECT_EQ(fused[1].page, 7);
  EXPECT_EQ(fused[0].score, fused[1].score);
  EXPECT_EQ(Fused(rankings, kPages, 1).size(), 1U);
  EXPECT_TRUE(Fused(rankings, kPages, 0).empty());
  EXPECT_TRUE(Fused(rankings, kPages, -1).empty());
  EXPECT_TRUE(Fused({}, kPages, 5).empty());
}

TEST(LogitFusion, APageCountsOnceInARanking) {
  const std::vector<Ranking> twice{{IndexPart::kHeads, {{1, 3.0F}, {1, 2.0F}, {2, 1.0F}}, 30.0F}};
  const std::vector<Ranking> once{{IndexPart::kHeads, {{1, 3.0F}, {2, 1.0F}}, 30.0F}};
  const auto fused = Fused(twice, kPages, 10);
  const auto expected = Fused(once, kPages, 10);
  ASSERT_EQ(fused.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(fused[i].page, expected[i].page);
    EXPECT_EQ(fused[i].score, expected[i].score);
  }
}

TEST(LogitFusion, APartIsHeardWithItsPagesAndItsGroups) {
  Ranking pages{IndexPart::kLexical, {{1, 4.0F}, {2, 1.0F}}, 16.0F};
  Ranking groups{IndexPart::kLexical, {{3, 9.0F}, {1, 4.0F}}, 16.0F};
  groups.granularity = Granularity::kGroup;
  const auto fused = Fused({pages, groups}, kPages, 10);
  ASSERT_EQ(fused.size(), 3U);
  EXPECT_GT(ScoreOf(fused, 1), ScoreOf(Fused({pages}, kPages, 10), 1));
  EXPECT_GT(ScoreOf(fused, 1), ScoreOf(Fused({groups}, kPages, 10), 1));
  EXPECT_EQ(std::ranges::find(fused, 1, &FusedHit::page)->found_by, IndexParts({IndexPart::kLexical}));
}

}  // namespace
}  // namespace everlong::index
