// The vectors of a neural inverted index in lists, each with the vectors nearest to its centre. Lists grow and shrink
// with the vectors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/index/index_file.h"
#include "everlong/index/neural_inverted_index.h"
#include "list_centres.h"
#include "vector_scan.h"

namespace everlong::index {

// The place of a vector in memory, below the number of all places.
using VectorRow = int32_t;
inline constexpr VectorRow kNoRow = -1;

// Lists have numbers, which change, and ids, which do not. Threads are as for the index.
class InvertedLists {
 public:
  struct List {
    int64_t id = 0;
    std::vector<VectorRow> rows;
    CacheLineVector<std::byte> codes;  // [rows][width] int8: each vector's difference from the centroid
    std::vector<float> scales;         // [rows]
  };

  explicit InvertedLists(const NeuralInvertedOptions& options);

  // Add vectors [ids, width] with new ids.
  void Add(std::span<const int64_t> ids, std::span<const float> vectors);
  void Remove(VectorRow row);

  [[nodiscard]] VectorRow Find(int64_t id) const {  // kNoRow for an unknown one
    const auto found = row_of_.find(id);
    return found == row_of_.end() ? kNoRow : found->second;
  }
  [[nodiscard]] const List& ListOf(VectorRow row) const { return lists_[At(places_[At(row)].list)]; }
  [[nodiscard]] int64_t id(VectorRow row) const { return row_ids_[At(row)]; }
  [[nodiscard]] const float* vector(VectorRow row) const { return rows_.data() + row * width_; }  // [width]
  [[nodiscard]] const std::vector<List>& lists() const { return lists_; }                         // by number
  [[nodiscard]] const ListCentres& centres() const { return centres_; }
  [[nodiscard]] ListCentres& centres() { return centres_; }
  [[nodiscard]] ScannedRows Scanned() const;
  [[nodiscard]] const std::unordered_map<int64_t, VectorRow>& row_of() const { return row_of_; }  // by id
  [[nodiscard]] int64_t next_list() const { return next_list_; }
  [[nodiscard]] size_t bytes() const;

  void Write(IndexFileWriter& writer) const;
  // Read so many lists with so many vectors into an empty object. `next_list` is the id of the next new list.
  Status Read(IndexFileReader& reader, size_t lists, int64_t vectors, int64_t next_list);

 private:
  struct Place {
    int32_t list = -1;  // its number, not its id
    int32_t slot = 0;
  };

  int32_t NewList(std::span<const float> centroid, const ListCentres::Learned& learned);
  // Drop a list. The last list takes its number.
  void DropList(int32_t list);
  void PutIn(VectorRow row, int32_t number);
  // Take a vector out of its list. The last member takes its slot.
  void TakeOut(VectorRow row);
  // Return how many more vectors a list may have; below 0 it is too full.
  [[nodiscard]] int64_t Room(int32_t list) const { return 2 * list_vectors_ - std::ssize(lists_[At(list)].rows); }
  void SplitFullOnes(std::span<const int32_t> filled);
  // Return the ids of the two halves. Each is smaller, and no other list becomes full: splitting ends.
  std::array<int64_t, 2> Split(int32_t list);
  // Return `own`, `other` or one of those beside that has room; `own` where none is nearer.
  [[nodiscard]] int32_t NearestOf(VectorRow row, int32_t own, int32_t other, std::span<const int32_t> beside) const;
  // Dissolve a list. Its members go to the nearest of the other lists.
  void GiveUp(int32_t list);

  int64_t list_vectors_;
  Metric metric_;
  int64_t width_;
  CacheLineVector<float> rows_;   // [rows][width]
  std::vector<int64_t> row_ids_;  // [rows]; kNoId where a vector was removed
  std::vector<Place> places_;     // [rows]
  std::vector<VectorRow> free_rows_;
  std::unordered_map<int64_t, VectorRow> row_of_;
  std::vector<List> lists_;
  ListCentres centres_;
  int64_t next_list_ = 0;
};

}  // namespace everlong::index
