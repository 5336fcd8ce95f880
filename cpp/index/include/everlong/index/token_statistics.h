// Document frequencies of token ids over pages, for the weights of the retrieval heads and for words.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"

namespace everlong::index {

// Pages that are counted elsewhere, as those of a saved index. Thread-safe.
class CountedPages {
 public:
  CountedPages() = default;
  CountedPages(const CountedPages&) = delete;
  CountedPages& operator=(const CountedPages&) = delete;
  virtual ~CountedPages() = default;
  [[nodiscard]] virtual int64_t PagesWith(int32_t id) const = 0;
};

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
  // Add what AddBlock would count for `pages` pages, given how many of them have each of these ids. A frequency below 0
  // takes from what AddSaved added.
  void AddCounted(std::span<const Frequency> frequencies, int64_t pages);
  // Add the frequencies of pages that are counted elsewhere, but not the number of these pages.
  void AddSaved(std::shared_ptr<const CountedPages> saved);
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
  // Return how many pages have an id. Call it under guard_.
  [[nodiscard]] int64_t FrequencyOf(int32_t id) const;

  mutable FairSharedMutex guard_;
  int64_t pages_ = 0;
  std::vector<std::shared_ptr<const CountedPages>> saved_;
  std::unordered_map<int32_t, int64_t> frequency_;  // beside that of saved_; below 0 where fewer are left
};

}  // namespace everlong::index
