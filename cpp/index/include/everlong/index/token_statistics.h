// Document frequencies of token ids over pages, for the weights of the retrieval heads and for words.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"

namespace everlong::index {

// Thread-safe. Readers run beside one adder. They see all pages of a call or none.
class TokenStatistics {
 public:
  // Count each distinct id of a page once.
  void AddPage(std::span<const int32_t> token_ids) { AddBlock(token_ids, static_cast<int32_t>(token_ids.size())); }
  // Remove the counts of a page that was added, given its ids.
  void RemovePage(std::span<const int32_t> token_ids) {
    RemoveBlock(token_ids, static_cast<int32_t>(token_ids.size()));
  }
  // Do the same for pages of `page_tokens` each, one after the other. The last page may have fewer.
  void AddBlock(std::span<const int32_t> token_ids, int32_t page_tokens);
  void RemoveBlock(std::span<const int32_t> token_ids, int32_t page_tokens);
  // How many pages have an id.
  struct Frequency {
    int32_t id = 0;
    int64_t pages = 0;
  };
  // Add what AddBlock would count for `pages` pages, given how many of them have each of these distinct ids.
  void AddCounted(std::span<const Frequency> frequencies, int64_t pages);
  void Clear();

  [[nodiscard]] int64_t pages() const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about
  [[nodiscard]] int64_t DocumentFrequency(int32_t token_id) const;
  // The frequency of each id, and the number of pages at the same moment.
  struct Frequencies {
    std::vector<int64_t> of_ids;
    int64_t pages = 0;
  };
  [[nodiscard]] Frequencies DocumentFrequencies(std::span<const int32_t> token_ids) const;
  // Return IDF(t) = log(1 + pages / df(t)), with df floored at 1; 0 while there are no pages.
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

 private:
  mutable FairSharedMutex guard_;
  int64_t pages_ = 0;
  std::unordered_map<int32_t, int64_t> frequency_;
};

}  // namespace everlong::index
