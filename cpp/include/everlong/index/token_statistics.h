// Document frequencies of token ids over pages: for the weights of the retrieval heads, and for words.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"

namespace everlong::index {

// Thread-safe: what is asked runs beside one adder, and sees all pages of a call or none.
class TokenStatistics {
 public:
  // Counts each distinct id of a page once.
  void AddPage(std::span<const int32_t> token_ids) { AddBlock(token_ids, static_cast<int32_t>(token_ids.size())); }
  // The ids of a page that was added: it counts no more.
  void RemovePage(std::span<const int32_t> token_ids) {
    RemoveBlock(token_ids, static_cast<int32_t>(token_ids.size()));
  }
  // The same for pages of `page_tokens` each (the last may have fewer), one after the other.
  void AddBlock(std::span<const int32_t> token_ids, int32_t page_tokens);
  void RemoveBlock(std::span<const int32_t> token_ids, int32_t page_tokens);
  // How many pages have an id.
  struct Frequency {
    int32_t id = 0;
    int64_t pages = 0;
  };
  // What AddBlock would count of `pages` pages in which each of these distinct ids is so often.
  void AddCounted(std::span<const Frequency> frequencies, int64_t pages);
  void Clear();

  [[nodiscard]] int64_t pages() const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about
  [[nodiscard]] int64_t DocumentFrequency(int32_t token_id) const;
  // Of each id; and how many pages there are, at the same moment.
  struct Frequencies {
    std::vector<int64_t> of_ids;
    int64_t pages = 0;
  };
  [[nodiscard]] Frequencies DocumentFrequencies(std::span<const int32_t> token_ids) const;
  // IDF(t) = log(1 + pages / df(t)) (findings.md), df floored at 1; 0 while there are no pages.
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

 private:
  mutable FairSharedMutex guard_;
  int64_t pages_ = 0;
  std::unordered_map<int32_t, int64_t> frequency_;
};

}  // namespace everlong::index
