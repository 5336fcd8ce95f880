// The terms that name vectors of a neural inverted index, whatever their list.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "inverted_lists.h"

namespace everlong::index {

// Threads are as for the index.
class TermRows {
 public:
  // Replace the terms of a row.
  void Name(VectorRow row, std::vector<int32_t> terms);
  void Forget(VectorRow row);
  // Return the rows that the rarest of the terms name, ascending.
  [[nodiscard]] std::vector<VectorRow> Named(std::span<const int32_t> terms) const;
  [[nodiscard]] size_t bytes() const;

  [[nodiscard]] int64_t words() const;  // that Write writes, of 8 bytes
  void Write(IndexFileWriter& writer, const InvertedLists& lists) const;
  // Read so many words, of vectors that are in the lists.
  Status Read(IndexFileReader& reader, const InvertedLists& lists, int64_t words);

 private:
  std::unordered_map<int32_t, std::vector<VectorRow>> rows_of_term_;
  std::unordered_map<VectorRow, std::vector<int32_t>> terms_of_;
  size_t numbers_ = 0;  // that both have room for, about
};

}  // namespace everlong::index
