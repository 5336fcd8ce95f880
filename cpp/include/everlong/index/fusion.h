// Several rankings into one, by how far a page stands out in each, and hits into page groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/token_span.h"
#include "everlong/index/block_table.h"
#include "everlong/index/index_part.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/ranking.h"

namespace everlong::index {

struct FusedHit {
  int32_t page = 0;
  float score = 0;  // log of the odds of this page against one that no part names
  IndexParts found_by;
};

// The k best pages, best first, ties by the older page; none for k < 1. A page that a ranking names twice counts at its
// better rank.
//
// A part that sees nothing yields. (On a question in other words than the text's, the best page by words is hardly
// better than the tenth; fusing ranks alone gives both a vote all the same.) So a ranking speaks for a page as far as
// the page stands out from those that it does not name:
//
//   evidence = w * (g(score / whole) - g(unnamed / whole))      g: the root, or the share itself (Voice)
//
// An answer is either a statement, a sentence or two that the page alone shows, or prose, which the page shows with its
// neighbours. Nobody says which, so both are considered, with weights w of their own; in each a page's evidence is the
// sum over the rankings that name it, and the utility of a conditional logit (McFadden, 1974; as a loss for ranking:
// Cao et al., ICML 2007):
//
//   p(page) = q * exp(statement) / sum exp(statement) + (1 - q) * exp(prose) / sum exp(prose)      sums over all pages
//   fused   = log p(page) - log p(page that no ranking names)
//
// The way in which one page stands out far decides; where none does, both speak. q and w are those of maximum
// likelihood on questions of both kinds (benchmarks/fit_fusion.py). Weighted sums of scores by a normalisation of their
// own, against ranks: Bruch, Gai and Ingber, TOIS 2023. The root stands between the share, which sees little in what
// the heads give a page among many, and its logarithm. For mean_pool and hnsw, whose scores do not tell right from
// wrong, evidence = 1 / (60 + rank) in both: reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009).
//
// `pages` are those that were searched, named or not.
std::vector<FusedHit> LogitFusion(std::span<const Ranking> rankings, int32_t pages, int32_t k);

// A run of neighbouring pages of one stream and source, the unit of recall (findings.md: page +- 1 neighbour).
struct PageGroup {
  int64_t stream = 0;
  TokenSpan span;              // of the stream; covers `pages`
  std::vector<int32_t> pages;  // ordinals in order of time
  std::vector<float> scores;   // of `pages`; minus infinity for a neighbour that is no hit itself
  float score = 0;             // of its best page
  IndexParts found_by;         // of all its hits
};

// Of a group's best score, what a hit has to have to bring its surroundings along; with 0 every hit does.
inline constexpr float kLeastShare = 1.0F / 3.0F;

// Hits (best first) with `neighbours` pages on either side, merged where they touch; best first; at most max_groups
// groups and never more than token_budget tokens in all. The hits are served in their order: one whose surroundings do
// not fit in what is left of the budget gets those nearest to it that do (earlier before later), one that does not fit
// itself is left out. From the first that would need one group too many on, only hits on pages of the best group are
// served: a statement that runs on past the page of its first words comes back to its end. A hit that touches a group
// and has less than `least_share` of its best page's score adds nothing to it: in a text whose lines are much alike, as
// a table is, nearly every page is named, and half the table would come back around the line that was asked for. A
// group is one run of contiguous pages of one stream and source (BlockTable::Previous / Next); pages that are
// forgotten or that the filter does not allow are never part of one. Empty for max_groups < 1 or token_budget < 1.
std::vector<PageGroup> MakeGroups(std::span<const FusedHit> hits, const BlockTable& table, const PageFilter& filter,
                                  int32_t neighbours, int32_t max_groups, int64_t token_budget,
                                  float least_share = kLeastShare);

}  // namespace everlong::index
