// Vectors of one byte a number, side by side in memory, and their distances from another one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"

namespace everlong::graph {

// A vector in whole numbers. Each fits a byte, and the width is even. The largest squared distance of two fits int32.
struct Codes {
  std::vector<int16_t> values;  // [width]
  int32_t square = 0;           // of its length
  double lost = 0;              // its distance, in whole numbers, from the vector that was coded
};

// Use it from one thread at a time.
class CodeRows {
 public:
  explicit CodeRows(int64_t width) : width_(width) {}

  void Add(int64_t id, const Codes& codes);
  void Set(int64_t row, const Codes& codes);
  // Remove a row. The last row takes its place.
  void Remove(int64_t row);
  [[nodiscard]] bool Is(int64_t row, const Codes& codes) const;
  // Add the numbers of a row to `sums`.
  void AddTo(int64_t row, std::span<int64_t> sums) const;
  void Read(int64_t row, Codes& codes) const;  // everything but `lost`

  // Squared distances from all rows.
  struct Apart {
    std::vector<int32_t> distances;  // [size()] at least
    std::vector<uint16_t> near;      // for each kGroupRows rows, a bit for each that is no farther than the limit
  };
  // Compute them in a buffer of the caller.
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
