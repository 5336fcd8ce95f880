// How a memory finds pages: by its indexes, by recency, by chance.
#include <algorithm>
#include <limits>
#include <random>
#include <ranges>
#include <string>
#include <utility>

#include "everlong/index/fusion.h"
#include "everlong/index/index_part.h"
#include "everlong/os/memory.h"
#include "memory_state.h"

namespace everlong::os {
namespace {

using index::IndexPart;

// Hits that each kind contributes to the fusion; the tail of a ranking is noise.
constexpr int32_t kCandidates = 64;

Status CheckRequest(const SearchRequest& request) {
  if (request.kinds.empty()) return InvalidArgumentError("kinds: none, expected at least one");
  if (request.max_groups < 1) {
    return InvalidArgumentError("max_groups is " + std::to_string(request.max_groups) + ", expected at least 1");
  }
  if (request.neighbours < 0) {
    return InvalidArgumentError("neighbours is " + std::to_string(request.neighbours) + ", expected at least 0");
  }
  if (request.token_budget < 1) {
    return InvalidArgumentError("token_budget is " + std::to_string(request.token_budget) + ", expected at least 1");
  }
  return OkStatus();
}

// What a page scores at most that a search for `count` hits left out.
float ScoreOfUnnamed(std::span<const index::Hit> hits, int32_t count) {
  return std::ssize(hits) < count ? 0.0F : hits.back().score;
}

// One kind alone keeps its own scores.
std::vector<index::FusedHit> AsFused(const index::Ranking& ranking) {
  std::vector<index::FusedHit> hits;
  hits.reserve(ranking.hits.size());
  for (const index::Hit& hit : ranking.hits) hits.push_back({hit.page, hit.score, {ranking.part}});
  return hits;
}

}  // namespace

Result<index::Ranking> Memory::State::RankBlocks(const index::VectorIndex& block_index, std::span<const float> query,
                                                 int32_t count, const index::PageFilter& filter) const {
  if (std::ssize(query) != block_index.dimension()) {
    return InvalidArgumentError("mean_query has " + std::to_string(query.size()) + " numbers, expected " +
                                std::to_string(block_index.dimension()));
  }
  const auto pages_of = [this](int64_t id) {
    const BlockPages& block = blocks.at(id);
    return std::views::iota(block.first, block.first + block.count);
  };
  const index::IdFilter with_allowed_page([&](int64_t id) {
    return std::ranges::any_of(pages_of(id), [&filter](int32_t ordinal) { return filter.Allows(ordinal); });
  });
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::VectorHits> hits,
                            block_index.Search(query, count, with_allowed_page));
  index::Ranking ranking;
  for (const index::VectorHit& hit : hits[0]) {
    for (const int32_t ordinal : pages_of(hit.id)) {
      if (std::ssize(ranking.hits) < count && filter.Allows(ordinal)) ranking.hits.push_back({ordinal, hit.score});
    }
  }
  return ranking;
}

Result<index::Ranking> Memory::State::RankPages(const PageVectors& vectors, std::span<const float> query, int32_t count,
                                                const index::PageFilter& filter) const {
  EVERLONG_ASSIGN_OR_RETURN(
      const std::vector<PageVectors::Found> found, vectors.Search(query, count, [&](int64_t id, int32_t page) {
        const auto block = blocks.find(id);
        return block != blocks.end() && page < block->second.count && filter.Allows(block->second.first + page);
      }));
  index::Ranking ranking;
  ranking.part = IndexPart::kEmbedding;
  for (const PageVectors::Found& page : found) {
    ranking.hits.push_back({blocks.at(page.block).first + page.page, page.score});
  }
  ranking.unnamed = ScoreOfUnnamed(ranking.hits, count);
  return ranking;
}

Result<SearchResult> Memory::Search(const SearchRequest& request) const {
  EVERLONG_RETURN_IF_ERROR(CheckRequest(request));
  const bool by_heads = request.kinds.Has(IndexPart::kHeads) && !request.head_queries.empty();
  const bool by_lexical = request.kinds.Has(IndexPart::kLexical) && !request.token_ids.empty();
  const bool by_mean_pool = request.kinds.Has(IndexPart::kMeanPool) && !request.mean_query.empty();
  const bool by_hnsw = request.kinds.Has(IndexPart::kHnsw) && !request.mean_query.empty();
  const bool by_embedding = request.kinds.Has(IndexPart::kEmbedding) && !request.page_query.empty();
  if ((by_mean_pool || by_hnsw) && state_->text_alone()) {
    return InvalidArgumentError("mean_query is given, expected none: a memory of text alone has no keys");
  }

  EVERLONG_ASSIGN_OR_RETURN(const std::shared_lock<FairSharedMutex> reading,
                            state_->LockWithBlockIndexes(by_mean_pool, by_hnsw));
  const State& s = *state_;
  EVERLONG_RETURN_IF_ERROR(s.broken);
  const index::PageFilter filter = s.Recallable(request.stream, request.resident_from, request.filter);
  // No more than there are pages, and one, so that a search which names them all leaves none unnamed: multiples of what
  // a caller asks for would not be numbers any more.
  const int32_t candidates = std::max(kCandidates, std::min(request.max_groups, s.directory.size() + 1));

  SearchResult result;
  std::vector<index::Ranking> rankings;
  if (by_heads) {
    if (!s.heads.has_value()) {
      return InvalidArgumentError("head_queries are given, expected none: this memory has no retrieval heads");
    }
    const std::vector<float> weights = s.statistics.Idf(request.token_ids);
    EVERLONG_ASSIGN_OR_RETURN(std::vector<index::Hit> hits,
                              s.heads->Search(request.head_queries, weights, candidates, filter));
    float all = 0;
    for (const float weight : weights) all += weight;
    all *= static_cast<float>(s.heads->heads().size());
    if (!hits.empty()) {
      result.top_mass = hits[0].score / all;
      const float second = hits.size() > 1 ? hits[1].score : 0.0F;
      result.decisiveness =
          std::min(kMaxDecisiveness, hits[0].score / std::max(second, std::numeric_limits<float>::min()));
    }
    const float unnamed = ScoreOfUnnamed(hits, candidates);
    rankings.push_back({IndexPart::kHeads, std::move(hits), all, unnamed});
  }
  if (by_lexical) {
    EVERLONG_ASSIGN_OR_RETURN(std::vector<index::Hit> hits, s.lexical->Search(request.token_ids, candidates, filter));
    const float unnamed = ScoreOfUnnamed(hits, candidates);
    rankings.push_back({IndexPart::kLexical, std::move(hits), s.lexical->WholeScore(request.token_ids), unnamed});
  }
  if (by_mean_pool) {
    EVERLONG_ASSIGN_OR_RETURN(index::Ranking ranking,
                              s.RankBlocks(*s.mean_pool, request.mean_query, candidates, filter));
    ranking.part = IndexPart::kMeanPool;
    rankings.push_back(std::move(ranking));
  }
  if (by_hnsw) {
    EVERLONG_ASSIGN_OR_RETURN(index::Ranking ranking, s.RankBlocks(*s.hnsw, request.mean_query, candidates, filter));
    ranking.part = IndexPart::kHnsw;
    rankings.push_back(std::move(ranking));
  }
  if (by_embedding) {
    if (!s.page_vectors) {
      return InvalidArgumentError("page_query is given, expected none: this memory has no vectors of pages");
    }
    EVERLONG_ASSIGN_OR_RETURN(index::Ranking ranking,
                              s.RankPages(*s.page_vectors, request.page_query, candidates, filter));
    rankings.push_back(std::move(ranking));
  }

  // All that any part has named: hits behind the last group may still widen the best.
  const std::vector<index::FusedHit> fused =
      rankings.size() == 1
          ? AsFused(rankings[0])
          : index::LogitFusion(rankings, filter.Count(), candidates * static_cast<int32_t>(rankings.size()));
  result.agreed = !fused.empty() && std::ranges::all_of(rankings, [&fused](const index::Ranking& ranking) {
    const auto first = ranking.hits | std::views::take(kAgreementRanks);
    return std::ranges::find(first, fused[0].page, &index::Hit::page) != first.end();
  });
  for (index::PageGroup& group : index::MakeGroups(fused, s.directory, filter, request.neighbours, request.max_groups,
                                                   request.token_budget, request.least_share)) {
    FoundGroup found;
    for (const int32_t ordinal : group.pages) found.pages.push_back(s.RefOf(ordinal));
    found.page_scores = std::move(group.scores);
    found.stream = group.stream;
    found.span = group.span;
    found.source = s.directory.at(group.pages.front()).source;
    found.score = group.score;
    found.found_by = group.found_by;
    result.groups.push_back(std::move(found));
  }
  return result;
}

Result<std::vector<PageRef>> Memory::RecentPages(int64_t stream, int64_t before, int32_t blocks,
                                                 const SearchFilter& filter) const {
  if (blocks < 0) return InvalidArgumentError("blocks is " + std::to_string(blocks) + ", expected at least 0");
  const State& s = *state_;
  const std::shared_lock reading(state_->guard);
  std::vector<PageRef> pages;
  const auto found = s.streams.find(stream);
  if (found == s.streams.end()) return pages;
  std::vector<int64_t> newest;
  for (auto at = found->second.rbegin(); at != found->second.rend() && std::ssize(newest) < blocks; ++at) {
    const State::BlockPages& block = s.blocks.at(at->second);
    if (block.span.end <= before && block.Passes(filter)) newest.push_back(at->second);
  }
  for (const int64_t id : newest | std::views::reverse) {
    const State::BlockPages& block = s.blocks.at(id);
    for (int32_t ordinal = block.first; ordinal < block.first + block.count; ++ordinal)
      pages.push_back(s.RefOf(ordinal));
  }
  return pages;
}

Result<std::vector<PageRef>> Memory::RandomPages(int64_t stream, int64_t before, int32_t count, uint64_t seed) const {
  if (count < 0) return InvalidArgumentError("count is " + std::to_string(count) + ", expected at least 0");
  const State& s = *state_;
  const std::shared_lock reading(state_->guard);
  const index::PageFilter filter = s.Recallable(stream, before);
  std::vector<int32_t> pool;
  for (int32_t ordinal = 0; ordinal < s.directory.size(); ++ordinal) {
    if (filter.Allows(ordinal)) pool.push_back(ordinal);
  }
  // Fisher-Yates by hand: the standard's distributions differ from library to library, this draw does not.
  std::mt19937_64 random(seed);
  std::vector<PageRef> pages;
  for (size_t i = 0; i < pool.size() && std::ssize(pages) < count; ++i) {
    std::swap(pool[i], pool[i + random() % (pool.size() - i)]);
    pages.push_back(s.RefOf(pool[i]));
  }
  return pages;
}

}  // namespace everlong::os
