// The searches of a memory: by its indexes, by recency, at random.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/graph/walker.h"
#include "everlong/index/block_table.h"
#include "everlong/index/confidence.h"
#include "everlong/index/fusion.h"
#include "everlong/index/index_part.h"
#include "everlong/index/part.h"
#include "everlong/index/ranking.h"

namespace everlong::os {

struct MemoryState;  // private

using index::kMaxDecisiveness;
using index::SearchFilter;

// A score for a page from outside of the index, in the unit of its fused score.
struct AddedScore {
  PageRef page;
  float score = 0;
};

// A walk from what a search found (graph/walker.h).
struct WalkRequest {
  const graph::WalkerPolicy* policy = nullptr;  // outlives the search
  graph::WalkBudget budget;
  graph::WalkChoice::By by = graph::WalkChoice::By::kBest;
  uint64_t seed = 0;
  std::vector<PageRef> gold;
  bool keep_all = false;
};

// A request to search only blocks that match the question's times and tags (graph/tag_tree.h). A block's time is when
// it happened, where that was given (graph/own_tags.h), else when it was archived.
struct NarrowRequest {
  graph::TagQuery query;
  bool soft = true;  // where nothing matches, relax as NarrowedBy says; else nothing is found
};

struct SearchRequest {
  std::span<const int32_t> token_ids;  // the question's tokens
  index::Inputs inputs;                // of the parts; none: no search by the kinds that it is for
  // Several kinds are fused by how far a page stands out in each (index/fusion.h).
  index::IndexParts kinds{index::IndexPart::kHeads, index::IndexPart::kLexical};
  int32_t max_groups = 4;
  int32_t neighbours = 1;
  int64_t token_budget = 1024;             // of all groups; 0: no group
  float least_share = index::kLeastShare;  // below it a hit beside a group adds nothing to it (index::MakeGroups)
  // Added to the fused scores before groups are made. The hits of a part that searches alone keep its own scores, with
  // these added. A page that no part names, or that is unknown or forgotten, gains nothing.
  std::vector<AddedScore> added;
  // The pages that a walk loads come first: each scores at least as much as the best page that it did not load. What
  // the search found fills up the groups.
  std::optional<WalkRequest> walk;
  // Pages of `stream` that begin at this token or later are never returned: they are still in the frame.
  int64_t stream = 0;
  int64_t resident_from = INT64_MAX;
  // Applied before any page is scored; no group crosses it. Without roles here, a page that was said loses
  // kSaidDiscount.
  SearchFilter filter;
  // Narrows further. With `soft` also where the filter allows none of the blocks that are left.
  std::optional<NarrowRequest> narrow;
};

struct FoundGroup {
  std::vector<PageRef> pages;      // in order of time
  std::vector<float> page_scores;  // of `pages`; minus infinity for a neighbour that nothing found
  int64_t stream = 0;
  TokenSpan span;
  std::string source;
  float score = 0;
  index::IndexParts found_by;
  std::optional<float> confidence;  // probability that the answer is in it, 0 to 1; none as SearchResult::confidence
  bool walked = false;              // a walk came to it from another page
};

// How much less a page that was said counts than one that was read, in log-odds on its fused score, unless a search
// names roles. An answer repeats what was recalled for it, in few words that are close to the question's. Every part
// takes that for evidence, so a wrong answer would confirm itself. The discount equals the most that one part can say
// of a page beside the encoder (LeastEvidence, logit_fusion.cc). So it comes first only where another part names it
// too.
inline constexpr double kSaidDiscount = 2.0;

// An index agrees with the best page if that is among so many first pages of its ranking.
inline constexpr int64_t kAgreementRanks = 3;

// A walk, with its nodes as pages.
struct WalkReport {
  graph::WalkTrace trace;
  std::vector<std::vector<PageRef>> pages;  // of each way of each step; block 0 stands for stopping
  std::vector<PageRef> loads;
};

struct SearchResult {
  std::vector<FoundGroup> groups;  // best first
  float top_mass = 0;              // heads: mass of the best page over the sum of weights and heads, 0 to 1
  bool agreed = false;             // every index that was asked has the best page among its first kAgreementRanks
  float decisiveness = 0;  // heads: mass of the best page over the second best (1 to kMaxDecisiveness; 0 without heads)
  // The probability that the answer is in one of the groups, 0 to 1 (index/confidence.h): the sum of theirs. None where
  // only parts were asked whose scores do not tell right from wrong.
  std::optional<float> confidence;
  index::Signs signs;  // what `confidence` is computed from
  std::optional<WalkReport> walk;
  std::optional<graph::NarrowedBy> narrowed_by;  // of a search with a NarrowRequest
  int64_t narrowed_to = 0;                       // blocks
};

// The pages of a part, best first, by one of its granularities (index::Ranking).
struct PageRanking {
  index::IndexPart part;
  index::Granularity granularity = index::Granularity::kPage;
  std::vector<PageRef> pages;  // of a group, the middle one
  std::vector<float> scores;   // of `pages`
  float whole = 0;             // score of a page that has all that is asked for
  float unnamed = 0;           // the most that a page outside of these can score
};

// Thread-safe: searches run beside each other. A search finds a block only if every part of the index has it.
class Searcher {
 public:
  // Search for pages by every kind of `request.kinds` that has its input, and fuse them. A kind with one ranking keeps
  // its own scores when it is asked alone. Pages that hold only sinks are never returned. The first search by mean_pool
  // or hnsw reads a layer of every page.
  [[nodiscard]] Result<SearchResult> Find(const SearchRequest& request) const;
  // Return what each of these kinds ranks by itself, in each of its granularities: the k best pages of what Find
  // fuses. The fields of the request about groups do not count. kInvalidArgument on k < 1 and as in Find.
  [[nodiscard]] Result<std::vector<PageRanking>> Rankings(const SearchRequest& request, int32_t k) const;

  // Return the pages of the `blocks` newest blocks of `stream` that end at or before `before` and pass `filter`, in
  // order of time. It is the simplest recall policy: the newest blocks.
  [[nodiscard]] Result<std::vector<PageRef>> RecentPages(int64_t stream, int64_t before, int32_t blocks,
                                                         const SearchFilter& filter = {}) const;
  // Return `count` pages (or all there are) drawn without replacement, in the order of drawing, from all that a search
  // with resident_from = before may return. Every evaluation uses it as the random control.
  [[nodiscard]] Result<std::vector<PageRef>> RandomPages(int64_t stream, int64_t before, int32_t count, uint64_t seed,
                                                         const SearchFilter& filter = {}) const;
  // Return IDF(t) = log(1 + pages / df(t)) over the pages of this memory (index/token_statistics.h).
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

 private:
  friend class Memory;
  explicit Searcher(MemoryState& state) : state_(state) {}

  MemoryState& state_;  // of the memory, which outlives this
};

}  // namespace everlong::os
