#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"

namespace everlong::index {
namespace {

// What the best page must have of the evidence of the parts that find what is asked for in its own words, for each of
// them, so that they are heard beside the encoder: of greatest likelihood on the same questions, behind 131,086 tokens
// and behind a million. In a longer archive the softmax of the heads is thinner everywhere. What holds for fewer pages
// was not measured.
double LeastEvidence(int32_t pages) {
  constexpr double kLeast = 1.9;
  constexpr double kFewestPages = 3'600;
  return kLeast * std::pow(std::max(1.0, pages / kFewestPages), -0.25);
}

// The constant of reciprocal-rank fusion, for a part whose scores tell nothing.
constexpr double kRankConstant = 60;

// What evidence is linear in.
double Grown(const Voice& voice, float score, float whole) {
  const double share = whole > 0 ? std::max(0.0, score / static_cast<double>(whole)) : 0;
  return voice.grows == Voice::Grows::kAsRoot ? std::sqrt(share) : share;
}

}  // namespace

double Voice::Evidence(float score, size_t rank, float whole, float unnamed) const {
  if (!weight.has_value()) return 1 / (kRankConstant + static_cast<double>(rank));
  return *weight * std::max(0.0, Grown(*this, score, whole) - Grown(*this, unnamed, whole));
}

float Voice::Lowered(float score, double log_odds, float whole, float least) const {
  if (!weight.has_value()) return least;
  const double grown = std::max(0.0, Grown(*this, score, whole) - log_odds / *weight);
  const double share = grows == Grows::kAsRoot ? grown * grown : grown;
  return static_cast<float>(std::min<double>(score, whole * share));
}

std::vector<FusedHit> LogitFusion(std::span<const Ranking> rankings, int32_t pages, int32_t k) {
  struct Sum {
    double in_words = 0;  // evidence
    double otherwise = 0;
    double in_words_beside = 0;  // of these, of groups
    double otherwise_beside = 0;
    IndexParts found_by;
    size_t last_ranking = SIZE_MAX;
  };
  std::unordered_map<int32_t, Sum> sums;
  double best_in_words = 0;
  IndexParts parts_in_words;
  double least = 0;
  bool by_meaning = false;
  for (size_t ranking = 0; ranking < rankings.size(); ++ranking) {
    const Ranking& said = rankings[ranking];
    const Voice& voice = said.voice;
    const bool in_words = voice.finds == Voice::Finds::kWords;
    if (in_words && !parts_in_words.Has(said.part)) {
      parts_in_words |= {said.part};
      least += LeastEvidence(pages);
    }
    by_meaning = by_meaning || voice.finds == Voice::Finds::kMeaning;
    for (size_t rank = 1; rank <= said.hits.size(); ++rank) {
      Sum& sum = sums[said.hits[rank - 1].page];
      if (sum.last_ranking == ranking) continue;
      sum.last_ranking = ranking;
      const double evidence = voice.Evidence(said.hits[rank - 1].score, rank, said.whole, said.unnamed);
      (in_words ? sum.in_words : sum.otherwise) += evidence;
      if (said.granularity == Granularity::kGroup) {
        (in_words ? sum.in_words_beside : sum.otherwise_beside) += evidence;
      }
      sum.found_by |= {said.part};
      best_in_words = std::max(best_in_words, sum.in_words);
    }
  }
  const bool heard = !by_meaning || best_in_words >= least;
  std::vector<FusedHit> fused;
  fused.reserve(sums.size());
  for (const auto& [page, sum] : sums) {
    fused.push_back({page, static_cast<float>(sum.otherwise + (heard ? sum.in_words : 0)), sum.found_by,
                     static_cast<float>(sum.otherwise_beside + (heard ? sum.in_words_beside : 0))});
  }
  KeepBestFirst(fused, static_cast<size_t>(std::max(k, 0)), [](const FusedHit& hit) { return hit.page; });
  return fused;
}

}  // namespace everlong::index
