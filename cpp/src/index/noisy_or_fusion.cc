#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"

namespace everlong::index {
namespace {

// P(right | share) = 1 / (1 + exp(-slope * (share - midpoint))).
struct Calibration {
  double slope = 0;
  double midpoint = 0;
};

// Platt's logistic regression over the 64 best pages of every part, for the 84 questions of the development set (44
// paraphrases, 40 drawn facts; everlong.eval.paraphrases.DEVELOPMENT, benchmarks/index_recall.py --development) over
// 155,682 tokens by SmolLM2-135M and MiniLM; a page is right when 8 tokens of the fact or more stand in it.
std::optional<Calibration> CalibrationOf(FoundBy part) {
  switch (part) {
    case kFoundByHeads:
      return Calibration{.slope = 86, .midpoint = 0.062};
    case kFoundByLexical:
      return Calibration{.slope = 17, .midpoint = 0.67};
    case kFoundByEmbedding:
      return Calibration{.slope = 22.5, .midpoint = 0.58};
    case kFoundByMeanPool:
    case kFoundByHnsw:
      return std::nullopt;
  }
  return std::nullopt;
}

// What a part whose scores tell nothing gives its ranks for a probability: the weight of reciprocal-rank fusion.
constexpr double kRankConstant = 60;

// -log(1 - P), which for the logistic function is log(1 + exp(x)), kept from overflowing.
double Evidence(const Ranking& ranking, size_t rank) {
  const std::optional<Calibration> calibration = CalibrationOf(ranking.part);
  if (!calibration.has_value()) return -std::log1p(-1 / (kRankConstant + static_cast<double>(rank)));
  const double score = ranking.hits[rank - 1].score;
  const double share = ranking.whole > 0 ? score / static_cast<double>(ranking.whole) : 0;
  const double x = calibration->slope * (share - calibration->midpoint);
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace

std::vector<FusedHit> NoisyOrFusion(std::span<const Ranking> rankings, int32_t k) {
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
