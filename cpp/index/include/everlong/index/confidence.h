// The probability that the answer to a question is among the pages that came back for it.
//
// Fused scores only compare pages with each other (fusion.h). The best page stands out even in a memory without the
// answer. Two other things tell more. One is how much of the question the pages cover by themselves, in each part. The
// other is how far they stand out from all other pages:
//
//   P = 1 / (1 + exp(-(base + sum over signs of w * sign)))      w >= 0
//
// This is a logistic regression. It was fitted on questions that the memory answers and on questions that it does not.
// Every set of parts has its own base and w (benchmarks/fit_confidence.py), because a part's evidence is worth more
// where no other part gives the same. Platt (Advances in Large Margin Classifiers, 1999) turns scores that were fitted
// to order into probabilities by a logistic. Guo, Pleiss, Sun and Weinberger (ICML 2017) measure such probabilities.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "everlong/index/fusion.h"
#include "everlong/index/index_part.h"
#include "everlong/index/ranking.h"

namespace everlong::index {

// A ranking whose scores tell right pages from wrong ones.
struct TellingRanking {
  IndexPart part;
  Granularity granularity = Granularity::kPage;
};
inline constexpr std::array<TellingRanking, 11> kTellingRankings{{
    {IndexPart::kHeads, Granularity::kPage},
    {IndexPart::kHeads, Granularity::kGroup},
    {IndexPart::kLexical, Granularity::kPage},
    {IndexPart::kLexical, Granularity::kGroup},
    {IndexPart::kMeaning, Granularity::kPage},
    {IndexPart::kMeaning, Granularity::kGroup},
    {IndexPart::kEmbedding, Granularity::kPage},
    {IndexPart::kEncoder, Granularity::kPage},
    {IndexPart::kEncoder, Granularity::kGroup},
    {IndexPart::kWords, Granularity::kPage},
    {IndexPart::kWords, Granularity::kGroup},
}};

// The evidence for the pages that came back. More of each sign makes the answer likelier to be among them.
struct Signs {
  IndexParts parts;  // the parts that were asked, of those in kTellingRankings
  bool any = false;  // whether anything came back
  // By kTellingRankings: the best share of the question that one of these pages covers, as the part's evidence grows
  // (Voice::Grown). 0 where the part names none of them or was not asked.
  std::array<double, kTellingRankings.size()> best{};
  // Log-odds of these pages, by p of LogitFusion, against all other pages and one page more that no ranking names.
  double odds = 0;
};

// Return the signs of a search. `fused` are the hits of LogitFusion, with what was added to their scores. `groups` are
// what came back. `pages` is how many pages were searched.
Signs SignsOf(std::span<const Ranking> rankings, std::span<const FusedHit> fused, std::span<const PageGroup> groups,
              int32_t pages);

// Return 0 where nothing came back, and none where no part with telling scores was asked. A set of parts without fitted
// weights uses those of the largest set within it that has weights.
std::optional<double> Confidence(const Signs& signs);

// Return how p of LogitFusion is shared among the groups that came back. The shares sum to 1.
std::vector<double> SharesOf(std::span<const FusedHit> fused, std::span<const PageGroup> groups);

}  // namespace everlong::index
