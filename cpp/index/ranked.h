// The scores of a part as the ranking that it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "best_first.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/ranking.h"

namespace everlong::index {

// Return the k best of the pages that a part scored; k >= 0.
inline Ranking Ranked(std::vector<Hit> scored, int32_t k, float whole, Granularity granularity, const Voice& voice) {
  KeepBestFirst(scored, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
  Ranking ranking;
  ranking.unnamed = ScoreOfUnnamed(scored, k);
  ranking.hits = std::move(scored);
  ranking.whole = whole;
  ranking.voice = voice;
  ranking.granularity = granularity;
  return ranking;
}

}  // namespace everlong::index
