#include "everlong/index/confidence.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace everlong::index {
namespace {

// For a set of parts.
struct Weights {
  IndexParts parts;
  double base = 0;
  std::array<double, kTellingRankings.size()> best{};
  double odds = 0;
};

constexpr Weights kFitted[] = {
#include "confidence_weights.inc"
};

// The group that each page came back with.
std::unordered_map<int32_t, size_t> NumbersOf(std::span<const PageGroup> groups) {
  std::unordered_map<int32_t, size_t> numbers;
  for (size_t number = 0; number < groups.size(); ++number) {
    for (const int32_t page : groups[number].pages) numbers.emplace(page, number);
  }
  return numbers;
}

double LargestOf(std::span<const FusedHit> fused) {
  double largest = 0;  // the score of a page that nobody names
  for (const FusedHit& hit : fused) largest = std::max<double>(largest, hit.score);
  return largest;
}

}  // namespace

Signs SignsOf(std::span<const Ranking> rankings, std::span<const FusedHit> fused, std::span<const PageGroup> groups,
              int32_t pages) {
  Signs signs;
  signs.any = !groups.empty();
  const std::unordered_map<int32_t, size_t> came = NumbersOf(groups);
  for (const Ranking& ranking : rankings) {
    for (size_t at = 0; at < kTellingRankings.size(); ++at) {
      if (ranking.part != kTellingRankings[at].part || ranking.granularity != kTellingRankings[at].granularity)
        continue;
      signs.parts |= {ranking.part};
      for (const Hit& hit : ranking.hits) {
        if (!came.contains(hit.page)) continue;
        signs.best[at] = std::max(signs.best[at], ranking.voice.Grown(hit.score, ranking.whole));
      }
    }
  }
  if (!signs.any) return signs;

  const double largest = LargestOf(fused);
  const double unnamed = std::exp(-largest);
  double of_these = 0;
  double of_others = unnamed;
  size_t these_named = 0;
  for (const FusedHit& hit : fused) {
    const bool here = came.contains(hit.page);
    these_named += here ? 1 : 0;
    (here ? of_these : of_others) += std::exp(hit.score - largest);
  }
  const double these_unnamed = static_cast<double>(came.size() - these_named);
  const double others_unnamed = static_cast<double>(pages) - static_cast<double>(fused.size()) - these_unnamed;
  of_these += these_unnamed * unnamed;
  of_others += std::max(0.0, others_unnamed) * unnamed;
  signs.odds = std::log(of_these) - std::log(of_others);
  return signs;
}

std::optional<double> Confidence(const Signs& signs) {
  if (!signs.any) return 0.0;
  const auto* const weights = std::ranges::find(kFitted, signs.parts, &Weights::parts);
  if (weights == std::end(kFitted)) return std::nullopt;
  double sum = weights->base + weights->odds * signs.odds;
  for (size_t at = 0; at < signs.best.size(); ++at) sum += weights->best[at] * signs.best[at];
  return 1 / (1 + std::exp(-sum));
}

std::vector<double> SharesOf(std::span<const FusedHit> fused, std::span<const PageGroup> groups) {
  const std::unordered_map<int32_t, size_t> came = NumbersOf(groups);
  const double largest = LargestOf(fused);
  std::vector<double> shares(groups.size(), 0.0);
  double whole = 0;
  for (const FusedHit& hit : fused) {
    const auto group = came.find(hit.page);
    if (group == came.end()) continue;
    shares[group->second] += std::exp(hit.score - largest);
    whole += std::exp(hit.score - largest);
  }
  for (double& share : shares) share = whole > 0 ? share / whole : 1 / static_cast<double>(shares.size());
  return shares;
}

}  // namespace everlong::index
