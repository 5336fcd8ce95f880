#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"

namespace everlong::index {
namespace {

// The weights of a conditional logit, fitted by benchmarks/fit_fusion.py to all three parts and to every two of them at
// once: over the 64 best pages of each, for the 324 questions of the development set (211 paraphrases, 113 drawn facts;
// everlong.eval.development, benchmarks/index_recall.py --development) over 229,367 tokens by SmolLM2-135M and MiniLM.
std::optional<double> WeightOf(FoundBy part) {
  switch (part) {
    case kFoundByHeads:
      return 27.3;
    case kFoundByLexical:
      return 6.74;
    case kFoundByEmbedding:
      return 38.3;
    case kFoundByMeanPool:
    case kFoundByHnsw:
      return std::nullopt;
  }
  return std::nullopt;
}

// The constant of reciprocal-rank fusion, for a part whose scores tell nothing.
constexpr double kRankConstant = 60;

double RootOfShare(float score, float whole) {
  return whole > 0 ? std::sqrt(std::max(0.0, score / static_cast<double>(whole))) : 0;
}

double Evidence(const Ranking& ranking, size_t rank) {
  const std::optional<double> weight = WeightOf(ranking.part);
  if (!weight.has_value()) return 1 / (kRankConstant + static_cast<double>(rank));
  return *weight * std::max(0.0, RootOfShare(ranking.hits[rank - 1].score, ranking.whole) -
                                     RootOfShare(ranking.unnamed, ranking.whole));
}

}  // namespace

std::vector<FusedHit> LogitFusion(std::span<const Ranking> rankings, int32_t k) {
  struct Sum {
    double evidence = 0;
    uint32_t found_by = 0;
    size_t last_ranking = SIZE_MAX;
  };
  std::unordered_map<int32_t, Sum> sums;
  for (size_t ranking = 0; ranking < rankings.size(); ++ranking) {
    const std::vector<Hit>& hits = rankings[ranking].hits;
    for (size_t rank = 1; rank <= hits.size(); ++rank) {
      Sum& sum = sums[hits[rank - 1].page];
      if (sum.last_ranking == ranking) continue;
      sum.last_ranking = ranking;
      sum.evidence += Evidence(rankings[ranking], rank);
      sum.found_by |= rankings[ranking].part;
    }
  }
  std::vector<FusedHit> fused;
  fused.reserve(sums.size());
  for (const auto& [page, sum] : sums) fused.push_back({page, static_cast<float>(sum.evidence), sum.found_by});
  KeepBestFirst(fused, static_cast<size_t>(std::max(k, 0)), [](const FusedHit& hit) { return hit.page; });
  return fused;
}

}  // namespace everlong::index
