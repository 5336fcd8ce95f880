#include <algorithm>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"

namespace everlong::index {

std::vector<FusedHit> ReciprocalRankFusion(std::span<const Ranking> rankings, int32_t k, float constant) {
  struct Sum {
    double score = 0;
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
      sum.score += 1 / (static_cast<double>(constant) + static_cast<double>(rank));
      sum.found_by |= rankings[ranking].part;
    }
  }
  std::vector<FusedHit> fused;
  fused.reserve(sums.size());
  for (const auto& [page, sum] : sums) fused.push_back({page, static_cast<float>(sum.score), sum.found_by});
  KeepBestFirst(fused, static_cast<size_t>(std::max(k, 0)), [](const FusedHit& hit) { return hit.page; });
  return fused;
}

}  // namespace everlong::index
