// Document frequencies of token ids over pages, for IDF weights.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace everlong::index {

class TokenStatistics {
 public:
  // Counts each distinct id of a page once.
  void AddPage(std::span<const int32_t> token_ids);
  // The ids of a page that was added: it counts no more.
  void RemovePage(std::span<const int32_t> token_ids);
  [[nodiscard]] int64_t pages() const { return pages_; }
  [[nodiscard]] int64_t bytes() const;  // of host memory, about
  [[nodiscard]] int64_t DocumentFrequency(int32_t token_id) const;
  // IDF(t) = log(1 + pages / df(t)) (findings.md), df floored at 1; 0 while there are no pages.
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

 private:
  int64_t pages_ = 0;
  std::unordered_map<int32_t, int64_t> frequency_;
};

}  // namespace everlong::index
