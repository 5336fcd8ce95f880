#include "everlong/os/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "at_least.h"
#include "everlong/index/confidence.h"
#include "everlong/index/fusion.h"
#include "everlong/index/part_kinds.h"
#include "memory_state.h"
#include "memory_walk.h"

namespace everlong::os {
namespace {

using index::IndexPart;

// Hits that each ranking contributes to the fusion. The tail of a ranking is noise.
constexpr int32_t kCandidates = 256;

Status CheckRequest(const SearchRequest& request) {
  if (request.kinds.empty()) return InvalidArgumentError("kinds: none, expected at least one");
  EVERLONG_RETURN_IF_ERROR(AtLeast("max_groups", request.max_groups, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("neighbours", request.neighbours, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("token_budget", request.token_budget, 0));
  for (const AddedScore& added : request.added) {
    if (!std::isfinite(added.score)) return InvalidArgumentError("added: a score is not finite");
  }
  return OkStatus();
}

// Return how many hits to take of each ranking: at most one more than pages, so that naming all leaves none unnamed.
int32_t Candidates(const SearchRequest& request, const index::BlockTable& table) {
  return std::max(kCandidates, std::min(request.max_groups, table.pages() + 1));
}

// One ranking alone keeps its own scores.
std::vector<index::FusedHit> AsFused(const index::Ranking& ranking) {
  std::vector<index::FusedHit> hits;
  hits.reserve(ranking.hits.size());
  for (const index::Hit& hit : ranking.hits) hits.push_back({hit.page, hit.score, {ranking.part}});
  return hits;
}

// Apply kSaidDiscount to pages that were said, and sort them in again.
void DiscountSaid(const std::vector<index::Ranking>& rankings, const index::BlockTable& table,
                  std::vector<index::FusedHit>& hits) {
  const float least = hits.empty() ? 0 : hits.back().score;
  for (index::FusedHit& hit : hits) {
    if (table.BlockOfPage(hit.page).role != Role::kSaid) continue;
    hit.score = rankings.size() > 1 ? hit.score - static_cast<float>(kSaidDiscount)
                                    : rankings[0].voice.Lowered(hit.score, kSaidDiscount, rankings[0].whole, least);
  }
  std::ranges::stable_sort(hits, std::ranges::greater(), &index::FusedHit::score);
}

// Add scores. Hits that are named twice in `added` get both.
void AddScores(const std::vector<AddedScore>& added, const index::BlockTable& table,
               std::vector<index::FusedHit>& hits) {
  if (added.empty()) return;
  std::map<std::pair<int64_t, int32_t>, float> gains;  // by block and page
  for (const AddedScore& one : added) gains[{one.page.block, one.page.page}] += one.score;
  for (index::FusedHit& hit : hits) {
    const PageRef page = RefOf(table, hit.page);
    const auto gain = gains.find({page.block, page.page});
    if (gain != gains.end()) hit.score += gain->second;
  }
  std::ranges::stable_sort(hits, std::ranges::greater(), &index::FusedHit::score);
}

// Put a walk's pages before the others, as SearchRequest::walk says. Return those that it reached from another page.
std::set<int32_t> PutFirst(const graph::WalkTrace& trace, std::vector<index::FusedHit>& hits) {
  std::set<int32_t> walked;
  std::vector<index::FusedHit> first;
  for (size_t at = 0; at < trace.loads.size(); ++at) {
    const int32_t page = trace.loads[at];
    if (trace.from[at] != graph::kFromSearch) walked.insert(page);
    const auto own = std::ranges::find(hits, page, &index::FusedHit::page);
    first.push_back(own == hits.end() ? index::FusedHit{page, std::numeric_limits<float>::lowest(), {}} : *own);
  }
  std::erase_if(
      hits, [&](const index::FusedHit& hit) { return std::ranges::find(trace.loads, hit.page) != trace.loads.end(); });
  const float of_others = hits.empty() ? 0.0F : hits.front().score;
  for (index::FusedHit& hit : first) hit.score = std::max(hit.score, of_others);
  hits.insert(hits.begin(), first.begin(), first.end());
  std::ranges::stable_sort(hits, std::ranges::greater(), &index::FusedHit::score);
  return walked;
}

// Return the parts of `request.kinds` that have their input.
std::vector<IndexPart> AskedParts(const SearchRequest& request, const index::Query& query) {
  std::vector<IndexPart> asked;
  for (const IndexPart part : index::AllIndexParts()) {
    const std::string_view input = index::KindOf(part).input;
    const bool has_input = input.empty() ? !query.token_ids.empty() : !query.Input(input).empty();
    if (request.kinds.Has(part) && has_input) asked.push_back(part);
  }
  return asked;
}

// The parts' answers, and the pages that they were asked over, while nothing changes.
struct Asked {
  IndexSet::Lock reading;
  std::vector<IndexPart> parts;
  index::PageFilter filter;
  std::optional<graph::Narrowed> narrowed;
  std::vector<index::Ranking> rankings;
};

// Return `filter` without what the request's times and tags leave out. Call it while the index is read.
index::PageFilter NarrowTo(MemoryState& state, const NarrowRequest& request, const index::PageFilter& filter,
                           graph::Narrowed& narrowed) {
  narrowed = state.tags.Narrow(request.query);
  using graph::NarrowedBy;
  if (!request.soft && narrowed.by != NarrowedBy::kTimesAndAllTags) narrowed.blocks.clear();
  index::PageFilter left;
  for (const int64_t id : narrowed.blocks) {
    const index::BlockEntry* const block = state.index.table().Find(id);
    if (block != nullptr) left.Add(block->pages());
  }
  left = filter.Without(filter.Without(left));
  if (!left.empty() || !request.soft) return left;
  narrowed = {};
  return filter;
}

// Ask every kind of the request for its k best pages; without k for as many as a search fuses.
Result<Asked> Ask(MemoryState& state, const SearchRequest& request, std::optional<int32_t> k) {
  EVERLONG_RETURN_IF_ERROR(CheckRequest(request));
  const index::Query query{request.token_ids, request.inputs};
  Asked asked;
  asked.parts = AskedParts(request, query);
  if (state.text_alone()) {
    for (const IndexPart part : asked.parts) {
      if (index::KindOf(part).needs_keys) return InvalidArgumentError(std::string(index::KindOf(part).missing));
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(asked.reading, state.index.ReadWith(asked.parts));
  EVERLONG_RETURN_IF_ERROR(state.index.broken());
  asked.filter = state.index.table().Recallable(request.stream, request.resident_from, request.filter);
  if (request.narrow) {
    graph::Narrowed& narrowed = asked.narrowed.emplace();
    asked.filter = NarrowTo(state, *request.narrow, asked.filter, narrowed);
  }
  const int32_t hits = k ? *k : Candidates(request, state.index.table());
  for (const IndexPart part : asked.parts) {
    const index::Part* const asking = state.index.part(part);
    if (asking == nullptr) return InvalidArgumentError(std::string(index::KindOf(part).missing));
    EVERLONG_ASSIGN_OR_RETURN(std::vector<index::Ranking> of_part, asking->Rank(query, asked.filter, hits));
    for (index::Ranking& ranking : of_part) {
      ranking.part = part;
      asked.rankings.push_back(std::move(ranking));
    }
  }
  return asked;
}

Result<WalkReport> WalkFrom(const MemoryState& state, const SearchRequest& request, const Asked& asked,
                            std::span<const index::FusedHit> fused) {
  const index::BlockTable& table = state.index.table();
  const WalkRequest& wanted = *request.walk;
  EVERLONG_CHECK(wanted.policy != nullptr);
  graph::WalkChoice choice{wanted.by, wanted.seed, {}, wanted.keep_all};
  for (const PageRef& gold : wanted.gold) {
    const index::BlockEntry* const block = table.Find(gold.block);
    if (block == nullptr || gold.page < 0 || gold.page >= block->page_count) {
      return NotFoundError("gold: no page " + std::to_string(gold.page) + " of block " + std::to_string(gold.block));
    }
    choice.gold.push_back(block->first_page + gold.page);
  }
  MemoryWalk space(state, request, asked.filter, fused, asked.rankings);
  WalkReport report;
  EVERLONG_ASSIGN_OR_RETURN(report.trace, graph::Walk(*wanted.policy, space, wanted.budget, choice));
  for (const graph::WalkStep& step : report.trace.steps) {
    std::vector<PageRef>& pages = report.pages.emplace_back();
    for (const graph::SeenWay& way : step.ways) pages.push_back(way.node < 0 ? PageRef() : RefOf(table, way.node));
  }
  for (const int32_t page : report.trace.loads) report.loads.push_back(RefOf(table, page));
  return report;
}

// Fill in what the rankings say of the best page by attention.
void TellDecision(const std::vector<index::Ranking>& rankings, SearchResult& result) {
  for (const index::Ranking& ranking : rankings) {
    if (!ranking.decision) continue;
    result.top_mass = ranking.decision->top_mass;
    result.decisiveness = ranking.decision->decisiveness;
  }
}

// Return whether every part that was asked has this page among its first kAgreementRanks.
bool AllAgree(const std::vector<IndexPart>& parts, const std::vector<index::Ranking>& rankings, int32_t page) {
  return std::ranges::all_of(parts, [&](IndexPart part) {
    return std::ranges::any_of(rankings, [&](const index::Ranking& ranking) {
      const auto first = ranking.hits | std::views::take(kAgreementRanks);
      return ranking.part == part && std::ranges::find(first, page, &index::Hit::page) != first.end();
    });
  });
}

FoundGroup FoundOf(index::PageGroup group, const index::BlockTable& table, const std::set<int32_t>& walked) {
  FoundGroup found;
  for (const int32_t ordinal : group.pages) found.pages.push_back(RefOf(table, ordinal));
  found.page_scores = std::move(group.scores);
  found.stream = group.stream;
  found.span = group.span;
  found.source = table.source(table.page(group.pages.front()).source);
  found.score = group.score;
  found.found_by = group.found_by;
  found.walked = std::ranges::any_of(group.pages, [&](int32_t page) { return walked.contains(page); });
  return found;
}

}  // namespace

Result<std::vector<PageRanking>> Searcher::Rankings(const SearchRequest& request, int32_t k) const {
  EVERLONG_RETURN_IF_ERROR(AtLeast("k", k, 1));
  EVERLONG_ASSIGN_OR_RETURN(const Asked asked, Ask(state_, request, k));
  std::vector<PageRanking> told;
  for (const index::Ranking& ranking : asked.rankings) {
    PageRanking& of = told.emplace_back();
    of.part = ranking.part;
    of.granularity = ranking.granularity;
    of.whole = ranking.whole;
    of.unnamed = ranking.unnamed;
    for (const index::Hit& hit : ranking.hits) {
      of.pages.push_back(RefOf(state_.index.table(), hit.page));
      of.scores.push_back(hit.score);
    }
  }
  return told;
}

Result<SearchResult> Searcher::Find(const SearchRequest& request) const {
  EVERLONG_ASSIGN_OR_RETURN(const Asked asked, Ask(state_, request, std::nullopt));
  std::vector<index::Ranking> rankings = asked.rankings;
  // If no neighbour comes back, the score of a page with its neighbours is of no use.
  if (request.neighbours == 0) {
    std::erase_if(rankings,
                  [](const index::Ranking& ranking) { return ranking.granularity == index::Granularity::kGroup; });
  }
  const index::BlockTable& table = state_.index.table();
  const int32_t allowed = asked.filter.Count();
  SearchResult result;
  if (asked.narrowed) {
    result.narrowed_by = asked.narrowed->by;
    result.narrowed_to = std::ssize(asked.narrowed->blocks);
  }
  TellDecision(rankings, result);

  // Use all that any part has named: hits behind the last group may still widen the best one.
  int64_t named = 0;
  for (const index::Ranking& ranking : rankings) named += std::ssize(ranking.hits);
  const auto by_odds = [&] {
    return index::LogitFusion(rankings, allowed, static_cast<int32_t>(std::min<int64_t>(named, INT32_MAX)));
  };
  const bool alone = rankings.size() == 1;
  std::vector<index::FusedHit> fused = alone ? AsFused(rankings[0]) : by_odds();
  if (!request.filter.roles) DiscountSaid(rankings, table, fused);
  AddScores(request.added, table, fused);
  std::set<int32_t> walked;
  if (request.walk) {
    EVERLONG_ASSIGN_OR_RETURN(result.walk, WalkFrom(state_, request, asked, fused));
    walked = PutFirst(result.walk->trace, fused);
  }
  result.agreed = !fused.empty() && AllAgree(asked.parts, rankings, fused[0].page);
  std::vector<index::PageGroup> groups = index::MakeGroups(
      fused, table, asked.filter, request.neighbours, request.max_groups, request.token_budget, request.least_share);
  if (alone) fused = by_odds();
  result.signs = index::SignsOf(asked.rankings, fused, groups, allowed);
  const std::optional<double> confidence = index::Confidence(result.signs);
  if (confidence) result.confidence = static_cast<float>(*confidence);
  const std::vector<double> shares = index::SharesOf(fused, groups);
  for (size_t at = 0; at < groups.size(); ++at) {
    FoundGroup& found = result.groups.emplace_back(FoundOf(std::move(groups[at]), table, walked));
    if (confidence) found.confidence = static_cast<float>(*confidence * shares[at]);
  }
  return result;
}

Result<std::vector<PageRef>> Searcher::RecentPages(int64_t stream, int64_t before, int32_t blocks,
                                                   const SearchFilter& filter) const {
  EVERLONG_RETURN_IF_ERROR(AtLeast("blocks", blocks, 0));
  const auto reading = state_.index.Read();
  const index::BlockTable& table = state_.index.table();
  std::vector<PageRef> pages;
  for (const index::BlockEntry* const block : table.RecentBlocks(stream, before, blocks, filter)) {
    AddPagesOf(table, *block, pages);
  }
  return pages;
}

Result<std::vector<PageRef>> Searcher::RandomPages(int64_t stream, int64_t before, int32_t count, uint64_t seed,
                                                   const SearchFilter& filter) const {
  EVERLONG_RETURN_IF_ERROR(AtLeast("count", count, 0));
  const auto reading = state_.index.Read();
  const index::BlockTable& table = state_.index.table();
  const index::PageFilter allowed = table.Recallable(stream, before, filter);
  const index::PagePositions pool(allowed);
  // Fisher-Yates by hand, because the standard's distributions differ between libraries. Only the positions that were
  // moved are kept, not the whole pool.
  std::mt19937_64 random(seed);
  std::unordered_map<int32_t, int32_t> moved;  // position -> page
  const auto at = [&](int32_t position) {
    const auto found = moved.find(position);
    return found == moved.end() ? pool[position] : found->second;
  };
  std::vector<PageRef> pages;
  for (int32_t i = 0; i < pool.size() && i < count; ++i) {
    const auto other = i + static_cast<int32_t>(random() % static_cast<uint64_t>(pool.size() - i));
    pages.push_back(RefOf(table, at(other)));
    moved[other] = at(i);
  }
  return pages;
}

std::vector<float> Searcher::Idf(std::span<const int32_t> token_ids) const {
  return state_.index.statistics().Idf(token_ids);
}

}  // namespace everlong::os
