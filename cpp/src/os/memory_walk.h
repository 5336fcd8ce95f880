// A memory as a space that the Walker goes through (graph/walker.h): its nodes are pages, ways lead from a page to
// those that say what it names, that the question asks for beside it, and that stand in its topic.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/walker.h"
#include "everlong/index/fusion.h"
#include "everlong/index/part.h"
#include "everlong/index/ranking.h"
#include "everlong/os/memory.h"
#include "memory_state.h"

namespace everlong::os {

// For one walk, while the index is read. What it refers to outlives it.
//
// A load is a page with its neighbours. Its text is read where it speaks of what is asked: of all runs of
// kWindowTokens of its tokens the one with the rarest of the question's words, and of what led here. The words around
// that are what the page says; pages that have them, and pages that mean the same (by the vectors of meaning that are
// stored with the page), are where it leads on. No edge is stored for that: which pages share words says the index.
class MemoryWalk final : public graph::WalkSpace {
 public:
  // flat: what the search found, best first; rankings: what it is made of.
  MemoryWalk(const Memory::State& state, const std::optional<MeaningOptions>& meaning, const SearchRequest& request,
             const index::PageFilter& filter, std::span<const index::FusedHit> flat,
             std::span<const index::Ranking> rankings);

  Result<std::vector<graph::Way>> Starts() override;
  Result<std::vector<graph::Way>> Load(const graph::Way& way, int32_t number) override;
  [[nodiscard]] bool Loaded(int32_t page) const override { return loaded_.contains(page); }
  [[nodiscard]] bool Brings(int32_t page, int32_t other) const override;
  void Refresh(graph::Way& way) const override;
  void RefreshStop(graph::WalkFeatures& features) const override;

 private:
  // A page by a kind of score: the share of the whole, or its root, and the place.
  struct Place {
    float share = 0;
    int32_t rank = 0;  // from 0 on
  };
  using Places = std::unordered_map<int32_t, Place>;
  using Ids = std::set<int32_t>;
  // A load, as it is left again.
  struct Left {
    Ids asked;  // words by which its text was read, and what it says beside them
    std::vector<int32_t> window;
  };
  // Token ids of a page and its neighbours, in order; and of which page, where on it, each is.
  struct Text {
    std::vector<int32_t> ids;
    std::vector<std::pair<int32_t, int32_t>> at;
  };

  [[nodiscard]] std::vector<int32_t> Surroundings(int32_t page) const;  // with itself, in order
  Result<std::span<const int32_t>> IdsOf(int32_t page);
  Result<Text> TextOf(int32_t page);
  // [first, last) of a text: where it speaks of `asked`.
  [[nodiscard]] std::pair<size_t, size_t> Window(const Text& text, const Ids& asked) const;
  // The stored vectors [n, dimension] of these tokens, of unit length; none without.
  Result<std::vector<float>> Vectors(const Text& text, size_t first, size_t last);
  // By words, and by meaning rows [n, dimension]: the k best pages, each alone.
  Result<Places> ByWords(const Ids& words, int32_t k) const;
  Result<Places> ByMeaning(std::span<const float> rows, int32_t k) const;
  [[nodiscard]] static Places PlacesOf(const index::Ranking& ranking, bool root, int32_t k);
  Status FindTopics();
  // Blocks of the topic of a block; empty without.
  Result<std::set<int64_t>> BesideInTopic(int64_t block) const;
  // Words of the question that no load has, and what its meaning lacks.
  Status UpdateLeft(const Text& text);
  // Of the tokens that count.
  [[nodiscard]] float SharedRun(std::span<const int32_t> text, const Ids& counted, std::span<const int32_t> page) const;
  Status Fill(graph::Way& way);
  [[nodiscard]] double Idf(int32_t id) const;

  const Memory::State& state_;
  const std::optional<MeaningOptions> options_;  // of the vectors of meaning
  const SearchRequest& request_;
  const index::PageFilter& filter_;
  const index::BlockTable& table_;
  std::span<const index::FusedHit> flat_;
  Ids question_;
  std::vector<float> meaning_;  // [T, dimension] of the question; none without
  int32_t dimension_ = 0;
  Places asked_words_, asked_words_around_, asked_meaning_, asked_meaning_around_, asked_rank_;
  Places left_words_, left_meaning_;
  Ids covered_;                      // of the question's words
  std::vector<float> nearest_;       // of each row of meaning_, the best cosine so far
  std::map<int64_t, float> topics_;  // cosines of blocks' topics, of the nearest
  std::map<int32_t, Left> left_;     // by number of the load
  std::set<int32_t> loaded_;
  std::map<int64_t, std::vector<int32_t>> ids_;  // of blocks that were read
  std::map<int64_t, std::optional<store::Tensor>> tensors_;
  mutable std::unordered_map<int32_t, double> idf_;
};

}  // namespace everlong::os
