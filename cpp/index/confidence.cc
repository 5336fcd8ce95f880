#include "everlong/index/confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "everlong/index/part_kinds.h"
#include "log_of_sums.h"

namespace everlong::index {
namespace {

// The weights for one set of parts.
struct Weights {
  IndexParts parts;
  double base = 0;
  std::array<double, kTellingRankings.size()> best{};
  double odds = 0;
};

constexpr Weights kFitted[] = {
#include "confidence_weights.inc"
};

// Return, for each page, the number of the group that it came back with.
std::unordered_map<int32_t, size_t> NumbersOf(std::span<const PageGroup> groups) {
  std::unordered_map<int32_t, size_t> numbers;
  for (size_t number = 0; number < groups.size(); ++number) {
    for (const int32_t page : groups[number].pages) numbers.emplace(page, number);
  }
  return numbers;
}

size_t SizeOf(const IndexParts& parts) {
  return static_cast<size_t>(std::ranges::count_if(AllIndexParts(), [&](IndexPart part) { return parts.Has(part); }));
}

// Return the weights of this set, or else those of the largest fitted set within it; null without one.
const Weights* WeightsFor(const IndexParts& parts) {
  const Weights* best = nullptr;
  for (const Weights& weights : kFitted) {
    IndexParts both = parts;
    both |= weights.parts;
    if (both == parts && (best == nullptr || SizeOf(weights.parts) > SizeOf(best->parts))) best = &weights;
  }
  return best;
}

}  // namespace

Signs SignsOf(std::span<const Ranking> rankings, std::span<const FusedHit> fused, std::span<const PageGroup> groups,
              int32_t pages) {
  Signs signs;
  signs.any = !groups.empty();
  const std::unordered_map<int32_t, size_t> came = NumbersOf(groups);
  for (const Ranking& ranking : rankings) {
    for (size_t at = 0; at < kTellingRankings.size(); ++at) {
      const auto& [part, granularity] = kTellingRankings[at];
      if (ranking.part != part || ranking.granularity != granularity) continue;
      signs.parts |= {part};
      for (const Hit& hit : ranking.hits) {
        if (!came.contains(hit.page)) continue;
        signs.best[at] = std::max(signs.best[at], ranking.voice.Grown(hit.score, ranking.whole));
      }
    }
  }
  if (!signs.any) return signs;

  LogOfSums these;
  LogOfSums others;
  size_t these_named = 0;
  for (const FusedHit& hit : fused) {
    const bool here = came.contains(hit.page);
    these_named += here ? 1 : 0;
    (here ? these : others).Add(hit.score);
  }
  const auto these_unnamed = static_cast<double>(came.size() - these_named);
  const double others_unnamed = static_cast<double>(pages) - static_cast<double>(fused.size()) - these_unnamed;
  signs.odds = these.With(these_unnamed) - others.With(std::max(0.0, others_unnamed) + 1);
  return signs;
}

std::optional<double> Confidence(const Signs& signs) {
  if (!signs.any) return 0.0;
  const Weights* const weights = WeightsFor(signs.parts);
  if (weights == nullptr) return std::nullopt;
  double sum = weights->base + weights->odds * signs.odds;
  for (size_t at = 0; at < signs.best.size(); ++at) sum += weights->best[at] * signs.best[at];
  return 1 / (1 + std::exp(-sum));
}

std::vector<double> SharesOf(std::span<const FusedHit> fused, std::span<const PageGroup> groups) {
  const std::unordered_map<int32_t, size_t> came = NumbersOf(groups);
  double largest = -std::numeric_limits<double>::infinity();  // of these pages only: another may stand out far
  for (const FusedHit& hit : fused) {
    if (came.contains(hit.page)) largest = std::max<double>(largest, hit.score);
  }
  std::vector<double> shares(groups.size(), 0.0);
  double whole = 0;
  for (const FusedHit& hit : fused) {
    const auto group = came.find(hit.page);
    if (group == came.end()) continue;
    shares[group->second] += std::exp(hit.score - largest);
    whole += std::exp(hit.score - largest);
  }
  for (double& share : shares) share /= whole;
  return shares;
}

}  // namespace everlong::index
