// What a part of the index says to a question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "everlong/index/index_part.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// What a page has for itself in each of the two ways in which a text answers, in log-odds (LogitFusion).
struct Evidence {
  double statement = 0;  // a sentence or two that stand in foreign text: the page alone tells
  double prose = 0;      // what is told over a page and more: the page with its neighbours does
};

// How a ranking's scores speak in the fusion (LogitFusion), as it was fitted to the part and granularity.
struct Voice {
  // How evidence grows with the share score / whole: as its root, for attention and words, of which a page among many
  // has little; as the share itself, for a cosine.
  enum class Grows : uint8_t { kAsRoot, kAsShare };
  // Evidence of a share of 1, where it grows: of greatest likelihood by benchmarks/fit_fusion.py, on 1,133 questions to
  // 82,748 tokens of stories and 331 about facts planted in 131,099 tokens of books, by SmolLM2-135M; rounded, and
  // those of the heads between the fit to all parts and that to words alone, which finds more facts first. None for a
  // part whose scores do not tell right from wrong: then its ranks speak.
  std::optional<Evidence> weights = std::nullopt;
  Grows grows = Grows::kAsRoot;

  // What its evidence is linear in: the share of `whole` that a score is, or the root of it.
  [[nodiscard]] double Grown(float score, float whole) const;
  // What it says for the page of a score and a rank from 1 on, against pages that score `unnamed` at most; `whole` is
  // the score of a page that has all that is asked for.
  [[nodiscard]] Evidence For(float score, size_t rank, float whole, float unnamed) const;
  // The score of a page that has less evidence of a statement than that of `score` by `log_odds`. Where that cannot be
  // said it is `least`, a score that no page is below.
  [[nodiscard]] float Lowered(float score, double log_odds, float whole, float least) const;
};

// How surely the best page is the one.
struct Decision {
  float top_mass = 0;      // its share of all that the part looked for, 0..1
  float decisiveness = 0;  // its score over the second best (1 to kMaxDecisiveness)
};
// What `decisiveness` is cut to; a page without a rival has it.
inline constexpr float kMaxDecisiveness = 1e6F;

// What a score of a ranking is about: the page alone, or the page with its neighbours, as a recall brings it back.
// Prose says what is asked for over a page and more; a sentence in foreign text is lost among its neighbours. So a part
// may rank by both.
enum class Granularity : uint8_t { kPage, kGroup };
constexpr std::string_view NameOf(Granularity granularity) {
  return granularity == Granularity::kPage ? "page" : "group";
}

struct Ranking {
  IndexPart part;         // set by whoever asked
  std::vector<Hit> hits;  // best first
  // The score of a page that has all that is asked for, in the unit of the hits' scores: the whole attention mass of
  // the retrieval heads, BM25 of a page with every word (LexicalIndex::WholeScore), a cosine of 1.
  float whole = 1;
  // What a page that is not among the hits scores at most: 0 where the part named all that it found, and the last hit's
  // score where more were cut off.
  float unnamed = 0;
  Voice voice = {};
  std::optional<Decision> decision = std::nullopt;  // of a part that tells
  Granularity granularity = Granularity::kPage;
};

// `unnamed` of a search for k hits.
inline float ScoreOfUnnamed(const std::vector<Hit>& hits, int32_t k) {
  return std::ssize(hits) < k ? 0.0F : hits.back().score;
}

}  // namespace everlong::index
