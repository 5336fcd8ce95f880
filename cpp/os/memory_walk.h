// A memory as a space for the Walker (graph/walker.h). Its nodes are pages. Ways lead from a page to pages that say
// what it names, that the question asks for besides it, or that are in its topic.
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
#include "everlong/os/index.h"
#include "everlong/os/search.h"
#include "memory_state.h"
#include "walk_texts.h"

namespace everlong::os {

// Use it for one walk, while the index is read. What it refers to must outlive it.
//
// A load is a page with its neighbours. Its text is read where it speaks of the question. That is the run of
// kWindowTokens tokens with the rarest words of the question, and of what led here. The words around that run are what
// the page says. Ways lead to pages that have these words, and to pages that mean the same, by the vectors of meaning
// that are stored with the page. No edge is stored for that: the index knows which pages share words.
class MemoryWalk final : public graph::WalkSpace {
 public:
  // `flat` is what the search found, best first. `rankings` are what it was made of.
  MemoryWalk(const MemoryState& state, const SearchRequest& request, const index::PageFilter& filter,
             std::span<const index::FusedHit> flat, std::span<const index::Ranking> rankings);

  Result<std::vector<graph::Way>> Starts() override;
  Result<std::vector<graph::Way>> Load(const graph::Way& way, int32_t number) override;
  [[nodiscard]] bool Loaded(int32_t page) const override { return loaded_.contains(page); }
  [[nodiscard]] bool Brings(int32_t page, int32_t other) const override;
  void Refresh(graph::Way& way) const override;
  void RefreshStop(graph::WalkFeatures& features) const override;

 private:
  // A page by one kind of score: its share of the whole, or the root of that, and its rank.
  struct Place {
    float share = 0;
    int32_t rank = 0;  // from 0
  };
  using Places = std::unordered_map<int32_t, Place>;
  using Ids = WalkTexts::Ids;
  using Text = WalkTexts::Text;
  // What a load says, and where that leads.
  struct Said {
    std::span<const int32_t> window;  // of its text
    Ids words;                        // of the window, that nobody asked for
    Places by_words;
    Places by_meaning;
    std::set<int64_t> in_topic;  // blocks
  };

  // Return the k best pages by words, or by meaning rows [n, dimension], each page alone.
  Result<Places> ByWords(const Ids& words, int32_t k) const;
  Result<Places> ByMeaning(std::span<const float> rows, int32_t k) const;
  [[nodiscard]] static Places PlacesOf(const index::Ranking& ranking, bool root, int32_t k);
  Status FindTopics();
  // Return the blocks of a block's topic; empty without.
  Result<std::set<int64_t>> BesideInTopic(int64_t block) const;
  // Update the words of the question that no load has, and the part of its meaning that is missing.
  Status UpdateLeft(const Text& text);
  Status Fill(graph::Way& way);
  // Fill in a way from a load's page, with what the load says.
  Status FillOnward(int32_t from, const Said& said, graph::Way& onward);

  const MemoryState& state_;
  const SearchRequest& request_;
  const index::PageFilter& filter_;
  const index::BlockTable& table_;
  std::span<const index::FusedHit> flat_;
  WalkTexts texts_;
  Ids question_;
  std::vector<float> meaning_;  // [T, dimension] of the question; none without
  int32_t dimension_ = 0;
  Places asked_words_, asked_words_around_, asked_meaning_, asked_meaning_around_, asked_rank_;
  Places left_words_, left_meaning_;
  Ids covered_;                      // of the question's words
  std::vector<float> nearest_;       // of each row of meaning_, the best cosine so far
  std::map<int64_t, float> topics_;  // cosines of blocks' topics, if these are among the nearest
  // By number of the load: the words by which its text was read, and what it says beside them.
  std::map<int32_t, Ids> asked_;
  std::set<int32_t> loaded_;
};

}  // namespace everlong::os
