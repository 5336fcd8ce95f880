#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "best_first.h"
#include "everlong/index/fusion.h"
#include "log_of_sums.h"

namespace everlong::index {
namespace {

// The prior probability that the answer to a question is a statement. Fitted with the weights.
constexpr double kStatements = 0.7;

// The constant of reciprocal-rank fusion, for a part with scores that do not tell right from wrong.
constexpr double kRankConstant = 60;

double LogOfSum(double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))); }

}  // namespace

double Voice::Grown(float score, float whole) const {
  const double share = whole > 0 ? std::max(0.0, score / static_cast<double>(whole)) : 0;
  return grows == Grows::kAsRoot ? std::sqrt(share) : share;
}

Evidence Voice::For(float score, size_t rank, float whole, float unnamed) const {
  if (!weights.has_value()) {
    const double by_rank = 1 / (kRankConstant + static_cast<double>(rank));
    return {by_rank, by_rank};
  }
  const double above = std::max(0.0, Grown(score, whole) - Grown(unnamed, whole));
  return {weights->statement * above, weights->prose * above};
}

float Voice::Lowered(float score, double log_odds, float whole, float least) const {
  if (!weights.has_value() || weights->statement <= 0) return least;
  const double grown = std::max(0.0, Grown(score, whole) - log_odds / weights->statement);
  const double share = grows == Grows::kAsRoot ? grown * grown : grown;
  return static_cast<float>(std::min<double>(score, whole * share));
}

std::vector<FusedHit> LogitFusion(std::span<const Ranking> rankings, int32_t pages, int32_t k) {
  struct Sum {
    Evidence evidence;
    IndexParts found_by;
    size_t last_ranking = SIZE_MAX;
  };
  std::unordered_map<int32_t, Sum> sums;
  for (size_t ranking = 0; ranking < rankings.size(); ++ranking) {
    const Ranking& said = rankings[ranking];
    for (size_t rank = 1; rank <= said.hits.size(); ++rank) {
      Sum& sum = sums[said.hits[rank - 1].page];
      if (sum.last_ranking == ranking) continue;
      sum.last_ranking = ranking;
      const Evidence heard = said.voice.For(said.hits[rank - 1].score, rank, said.whole, said.unnamed);
      sum.evidence.statement += heard.statement;
      sum.evidence.prose += heard.prose;
      sum.found_by |= {said.part};
    }
  }
  LogOfSums statements;
  LogOfSums prose;
  for (const auto& [page, sum] : sums) {
    statements.Add(sum.evidence.statement);
    prose.Add(sum.evidence.prose);
  }
  const double unnamed = std::max(0.0, static_cast<double>(pages) - static_cast<double>(sums.size()));
  const double statement = std::log(kStatements) - statements.With(unnamed);
  const double told = std::log(1 - kStatements) - prose.With(unnamed);
  std::vector<FusedHit> fused;
  fused.reserve(sums.size());
  for (const auto& [page, sum] : sums) {
    const double odds = LogOfSum(statement + sum.evidence.statement, told + sum.evidence.prose);
    fused.push_back({page, static_cast<float>(odds - LogOfSum(statement, told)), sum.found_by});
  }
  KeepBestFirst(fused, static_cast<size_t>(std::max(k, 0)), [](const FusedHit& hit) { return hit.page; });
  return fused;
}

}  // namespace everlong::index
