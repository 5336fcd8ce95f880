// A ranking: what a part of the index answers to a question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "everlong/index/index_part.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// A page's evidence in each of the two kinds of answers, in log-odds (LogitFusion).
struct Evidence {
  double statement = 0;  // a sentence or two in foreign text: the page alone shows it
  double prose = 0;      // told over a page and more: the page with its neighbours shows it
};

// How a ranking's scores count in the fusion (LogitFusion), as fitted to the part and granularity.
struct Voice {
  // How evidence grows with the share score / whole. kAsRoot is for words, and for attention to a whole group: prose
  // answers with small shares. A single page's small share of attention is mostly chance, and by its root it would
  // drown what other parts found.
  enum class Grows : uint8_t { kAsRoot, kAsShare };
  // Evidence of a share of 1. These weights are those of maximum likelihood by benchmarks/fit_fusion.py, rounded. The
  // fit used 260 questions to 48,349 tokens of stories and 190 about facts planted in 131,130 tokens of books, by
  // SmolLM2-135M. The weights of the heads lie between the fit to all parts and the fit to words without meaning, those
  // of words are of an earlier fit without an encoder. None for a part whose scores do not tell right from wrong: its
  // ranks count then.
  std::optional<Evidence> weights = std::nullopt;
  Grows grows = Grows::kAsRoot;

  // Return what the evidence is linear in: the share of `whole` that a score is, or its root.
  [[nodiscard]] double Grown(float score, float whole) const;
  // Return the evidence for a page with this score and this rank, from 1, against pages that score at most `unnamed`.
  // `whole` is the score of a page that has all that is asked for.
  [[nodiscard]] Evidence For(float score, size_t rank, float whole, float unnamed) const;
  // Return the score of a page whose evidence of a statement is lower than that of `score` by `log_odds`. Where there
  // is no such score it returns `least`, a score that no page is below.
  [[nodiscard]] float Lowered(float score, double log_odds, float whole, float least) const;
};

// How sure the part is of its best page.
struct Decision {
  float top_mass = 0;      // its share of all that the part looked for, 0 to 1
  float decisiveness = 0;  // its score over the second best, 1 to kMaxDecisiveness
};
// The upper bound of `decisiveness`. A page without a rival has it.
inline constexpr float kMaxDecisiveness = 1e6F;

// Whether a score is about the page alone, or about the page with its neighbours, as a recall brings it back. Prose
// answers over a page and more. A sentence in foreign text is lost among its neighbours. So a part may rank by both.
enum class Granularity : uint8_t { kPage, kGroup };
constexpr std::string_view NameOf(Granularity granularity) {
  return granularity == Granularity::kPage ? "page" : "group";
}

struct Ranking {
  IndexPart part;         // the caller sets it
  std::vector<Hit> hits;  // best first
  // The score of a page that has all that is asked for, in the unit of the hits' scores. It is the whole attention mass
  // of the retrieval heads, BM25 of a page with every word (LexicalIndex::WholeScore), or a cosine of 1.
  float whole = 1;
  // The most that a page outside of the hits can score: 0 if the part named all it found, else the last hit's score.
  float unnamed = 0;
  Voice voice = {};
  std::optional<Decision> decision = std::nullopt;  // if the part can tell
  Granularity granularity = Granularity::kPage;
};

// Return `unnamed` of a search for k hits.
inline float ScoreOfUnnamed(const std::vector<Hit>& hits, int32_t k) {
  return std::ssize(hits) < k ? 0.0F : hits.back().score;
}

}  // namespace everlong::index
