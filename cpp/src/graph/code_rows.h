// Vectors of whole numbers of one byte each, beside one another in memory, and how far they are from another one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"

namespace everlong::graph {

// A vector in whole numbers: each fits a byte, and the width is even. The largest squared distance of two fits int32.
struct Codes {
  std::vector<int16_t> values;  // [width]
  int32_t square = 0;           // of its length
  double lost = 0;              // its distance, in whole numbers, from what was coded
};

// One thread at a time.
class CodeRows {
 public:
  explicit CodeRows(int64_t width) : width_(width) {}

  void Add(int64_t id, const Codes& codes);
  void Set(int64_t row, const Codes& codes);
  // The last row takes its place.
  void Remove(int64_t row);
  [[nodiscard]] bool Is(int64_t row, const Codes& codes) const;
  // Adds the numbers of a row to those.
  void AddTo(int64_t row, std::span<int64_t> sums) const;
  void Read(int64_t row, Codes& codes) const;  // all but what it lost

  // Squared distances from all rows.
  struct Apart {
    std::vector<int32_t> distances;  // [size()] at least
    std::vector<uint16_t> near;      // of kGroupRows rows each, a bit for each that is no farther than the limit
  };
  // In a buffer of the caller's.
  void Distances(const Codes& from, Apart& apart, int32_t limit = INT32_MAX) const;

  [[nodiscard]] std::span<const int64_t> ids() const { return ids_; }
  [[nodiscard]] int64_t size() const { return std::ssize(ids_); }
  [[nodiscard]] int64_t bytes() const;

 private:
  [[nodiscard]] const int8_t* At(int64_t row) const;

  int64_t width_;
  std::vector<int64_t> ids_;        // [rows]
  std::vector<int32_t> squares_;    // [groups, kGroupRows], of their lengths
  CacheLineVector<int8_t> groups_;  // code_kernel.h
};

}  // namespace everlong::graph
