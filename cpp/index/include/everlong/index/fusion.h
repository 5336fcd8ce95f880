// Fuse several rankings into one by how far a page stands out in each, and make page groups of the hits.
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
  float score = 0;  // log of the odds of this page against a page that no part names
  IndexParts found_by;
};

// Return the k best pages, best first, ties by the older page; none for k < 1. A page that a ranking names twice counts
// at its better rank.
//
// A part that finds little should have little weight. When a question uses other words than the text, the best page by
// words is hardly better than the tenth. Fusion by rank alone would still give that part a full vote. So a ranking's
// evidence for a page is how far the page stands out from those that the ranking does not name:
//
//   evidence = w * (g(score / whole) - g(unnamed / whole))      g: the root, or the share itself (Voice)
//
// There are two kinds of answers. A statement is a sentence or two that the page alone shows. Prose is told by the page
// with its neighbours. Nobody says which kind a question wants, so both are considered, with weights w of their own. In
// each, a page's evidence is the sum over the rankings that name it. It is the utility of a conditional logit
// (McFadden, 1974; as a loss for ranking: Cao et al., ICML 2007):
//
//   p(page) = q * exp(statement) / sum exp(statement) + (1 - q) * exp(prose) / sum exp(prose)      sums over all pages
//   fused   = log p(page) - log p(page that no ranking names)
//
// The kind in which one page stands out far decides. Where neither does, both count. q and w have maximum likelihood on
// questions of both kinds (benchmarks/fit_fusion.py). Bruch, Gai and Ingber (TOIS 2023) compare weighted sums of
// normalised scores with fusion by ranks. The root lies between the share and its logarithm: where prose answers, a
// group's share of words and attention is small. The scores of mean_pool and hnsw do not tell right from wrong. Their
// evidence is 1 / (60 + rank) in both kinds: reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009).
//
// `pages` is how many pages were searched, named or not.
std::vector<FusedHit> LogitFusion(std::span<const Ranking> rankings, int32_t pages, int32_t k);

// A run of neighbouring pages of one stream and source: the unit of recall. A page alone is often only a part of what
// answers a question.
struct PageGroup {
  int64_t stream = 0;
  TokenSpan span;              // of the stream; covers `pages`
  std::vector<int32_t> pages;  // ordinals in order of time
  std::vector<float> scores;   // of `pages`; minus infinity for a neighbour that is not a hit
  float score = 0;             // of its best page
  IndexParts found_by;         // of all its hits
};

// The share of a group's best score that a hit needs to bring its neighbours along. With 0 every hit does.
inline constexpr float kLeastShare = 1.0F / 3.0F;

// Make groups of hits (best first) with `neighbours` pages on either side. Groups that touch are merged. They come back
// best first: at most max_groups groups, and at most token_budget tokens in all. Empty for max_groups < 1 or
// token_budget < 1.
//
// Hits are served in their order. If a hit's neighbours do not all fit into the rest of the budget, it gets the nearest
// that do, earlier ones before later ones. A hit that does not fit itself is left out. From the first hit that would
// need one group too many, only hits on pages of the best group are served. So a statement that runs on past the page
// of its first words comes back to its end.
//
// A hit that touches a group adds nothing to it below `least_share` of the score of the group's best page. In a text of
// similar lines, such as a table, nearly every page is named. Half the table would otherwise come back around the line
// that was asked for.
//
// A group is one run of contiguous pages of one stream and source (BlockTable::Previous / Next). It never has pages
// that are forgotten or that the filter does not allow.
std::vector<PageGroup> MakeGroups(std::span<const FusedHit> hits, const BlockTable& table, const PageFilter& filter,
                                  int32_t neighbours, int32_t max_groups, int64_t token_budget,
                                  float least_share = kLeastShare);

}  // namespace everlong::index
