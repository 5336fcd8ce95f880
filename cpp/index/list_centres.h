// The centres of the lists of a neural inverted index, and the router from a query to its lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/index/index_file.h"
#include "everlong/index/vector_index.h"
#include "vector_kernel.h"

namespace everlong::index {

// Return a number of a row or a list as an index into a vector.
inline size_t At(int64_t number) { return static_cast<size_t>(number); }

// Return the `count` lists of the largest scores [lists], best first, ties by the smaller number; never `without`.
std::vector<int32_t> BestLists(std::span<const float> scores, size_t count, int32_t without = -1);

// Lists have numbers 0, 1, 2 ... Threads are as for the index.
class ListCentres {
 public:
  // A list's router minus its centroid; 0 where nothing was trained.
  struct Learned {
    std::vector<float> vector;  // [width]
    float bias = 0;
  };

  ListCentres(int64_t width, Metric metric) : width_(width), is_l2_(metric == Metric::kL2) {}

  // Add a list around a centroid [width]. Its router is that of the list it comes from, moved as the centroid.
  void Add(std::span<const float> centroid, const Learned& learned);
  // Drop a list. The last list takes its number.
  void Drop(int32_t list);
  void SetRouter(size_t list, std::span<const float> vector, float bias);  // vector [dimension]

  [[nodiscard]] Learned LearnedOf(int32_t list) const;
  [[nodiscard]] const float* centroid(size_t list) const { return centroids_.data() + list * At(width_); }
  [[nodiscard]] const float* router(size_t list) const { return routers_.data() + list * At(width_); }
  [[nodiscard]] float bias(size_t list) const { return biases_[list]; }
  // Return x . c - |c|^2 / 2 of a vector x [width]: larger is nearer. For one list, or for all of them.
  [[nodiscard]] float Nearness(const float* vector, int32_t list) const {
    return -BestVectorKernel().negative_dot(vector, centroid(At(list)), &width_) - half_squares_[At(list)];
  }
  void Nearness(const float* vector, std::vector<float>& of_lists) const;
  // Return what the router says of every list for a query [width].
  [[nodiscard]] std::vector<float> Routed(const float* query) const;
  [[nodiscard]] size_t bytes() const {
    return (centroids_.capacity() + routers_.capacity() + biases_.capacity()) * sizeof(float);
  }

  void Write(IndexFileWriter& writer) const;
  // Read the centres of so many lists. kCorrupt when there are not so many, or where a number is not finite.
  Status Read(IndexFileReader& reader, size_t lists);

 private:
  // Append to half_squares_ and return the square of a centroid's length.
  double Measure(std::span<const float> centroid);
  void Score(const CacheLineVector<float>& by, const float* vector, std::vector<float>& scores) const;

  int64_t width_;
  bool is_l2_;
  CacheLineVector<float> centroids_;  // [lists][width]
  std::vector<float> half_squares_;   // [lists], of the centroids
  CacheLineVector<float> routers_;    // [lists][width]
  std::vector<float> biases_;         // [lists]
};

}  // namespace everlong::index
