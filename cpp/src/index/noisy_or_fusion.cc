#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"

namespace everlong::index {
namespace {

// P(right) = 1 / (1 + exp(-x)), x = of_share * share + of_contrast * contrast + constant.
struct Calibration {
  double of_share = 0;
  double of_contrast = 0;
  double constant = 0;
};

// Platt's logistic regression over the 64 best pages of every part, for the 84 questions of the development set (44
// paraphrases, 40 drawn facts; everlong.eval.paraphrases.DEVELOPMENT, benchmarks/index_recall.py --development) over
// 155,662 tokens by SmolLM2-135M and MiniLM; a page is right when 8 tokens of the fact or more stand in it.
std::optional<Calibration> CalibrationOf(FoundBy part) {
  switch (part) {
    case kFoundByHeads:
      return Calibration{.of_share = 42.5, .of_contrast = 1.4, .constant = -3.6};
    case kFoundByLexical:
      return Calibration{.of_share = 17, .of_contrast = 14, .constant = -11.4};
    case kFoundByEmbedding:
      return Calibration{.of_share = 8.1, .of_contrast = 11.3, .constant = -5.4};
    case kFoundByMeanPool:
    case kFoundByHnsw:
      return std::nullopt;
  }
  return std::nullopt;
}

// What a part whose scores tell nothing gives its ranks for a probability: the weight of reciprocal-rank fusion.
constexpr double kRankConstant = 60;

// A page with a hundredth of the best score of another is as bad as one with nothing.
constexpr float kLeastRatio = 0.01F;

// log(score / the best score of another page), at most log(100) from 0; 0 where there is no other page.
double Contrast(const std::vector<Hit>& hits, const Hit& hit) {
  const auto other = std::ranges::find_if(hits, [&hit](const Hit& one) { return one.page != hit.page; });
  if (other == hits.end()) return 0;
  const float least = kLeastRatio * std::max(std::max(hit.score, other->score), std::numeric_limits<float>::min());
  return std::log(static_cast<double>(std::max(hit.score, least)) / static_cast<double>(std::max(other->score, least)));
}

// -log(1 - P), which for the logistic function is log(1 + exp(x)), kept from overflowing.
double Evidence(const Ranking& ranking, size_t rank) {
  const std::optional<Calibration> calibration = CalibrationOf(ranking.part);
  if (!calibration.has_value()) return -std::log1p(-1 / (kRankConstant + static_cast<double>(rank)));
  const Hit& hit = ranking.hits[rank - 1];
  const double share = ranking.whole > 0 ? hit.score / static_cast<double>(ranking.whole) : 0;
  const double x =
      calibration->of_share * share + calibration->of_contrast * Contrast(ranking.hits, hit) + calibration->constant;
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
