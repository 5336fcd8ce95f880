// How likely the answer to a question is among the pages that came back for it.
//
// Fused scores compare pages with each other (fusion.h): the best of a memory that has no answer stands out too. What
// tells is how much of what the question asks for the pages have by themselves, in each part, and how far they stand
// out from all the others:
//
//   P = 1 / (1 + exp(-(base + sum over signs of w * sign)))      w >= 0
//
// a logistic regression on questions that the memory answers and on those that it does not, with base and w of their
// own for every set of parts that may be asked (benchmarks/fit_confidence.py): what a part says is worth more where no
// other says it too. Scores that were fitted to order, made probabilities by a logistic: Platt, Advances in Large
// Margin Classifiers, 1999. How it is known that they are: Guo, Pleiss, Sun and Weinberger, ICML 2017.
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

// A ranking whose scores tell right from wrong.
struct TellingRanking {
  IndexPart part;
  Granularity granularity = Granularity::kPage;
};
inline constexpr std::array<TellingRanking, 7> kTellingRankings{{
    {IndexPart::kHeads, Granularity::kPage},
    {IndexPart::kHeads, Granularity::kGroup},
    {IndexPart::kLexical, Granularity::kPage},
    {IndexPart::kLexical, Granularity::kGroup},
    {IndexPart::kMeaning, Granularity::kPage},
    {IndexPart::kMeaning, Granularity::kGroup},
    {IndexPart::kEmbedding, Granularity::kPage},
}};

// What speaks for the pages that came back: the more of each, the likelier the answer is among them.
struct Signs {
  IndexParts parts;  // that were asked, of those in kTellingRankings
  bool any = false;  // whether anything came back
  // By kTellingRankings: the best that one of these pages has of all that is asked for, as the part's evidence grows
  // (Voice::Grown); 0 where the part names none of them or was not asked.
  std::array<double, kTellingRankings.size()> best{};
  // Log-odds of these pages, by p of LogitFusion, against all other pages and one more that nobody names.
  double odds = 0;
};

// `fused`: of LogitFusion, with what was added to their scores; `groups`: what came back; `pages`: that were searched.
Signs SignsOf(std::span<const Ranking> rankings, std::span<const FusedHit> fused, std::span<const PageGroup> groups,
              int32_t pages);

// 0 where nothing came back; none where no part was asked whose scores tell. A set of parts that nothing was fitted to
// is heard by the largest within it that has weights.
std::optional<double> Confidence(const Signs& signs);

// How p of LogitFusion is shared among the groups that came back: sums to 1.
std::vector<double> SharesOf(std::span<const FusedHit> fused, std::span<const PageGroup> groups);

}  // namespace everlong::index
