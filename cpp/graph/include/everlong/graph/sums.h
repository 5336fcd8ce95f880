// The count, the sum and the sum of squared lengths of a set of vectors, without the vectors. These are the clustering
// features of BIRCH (Zhang, Ramakrishnan and Livny, 1996, section 4.1), on a grid that makes them exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::graph {

// A vector's numbers and its squared length are rounded to multiples of this before they are added. A double then holds
// every sum exactly, so the order of additions and removals changes no bit. That is true of up to 2^31 vectors of unit
// length, or up to 2^21 of kLongestVector.
inline constexpr double kGrid = 0x1p-22;
inline constexpr double kLongestVector = 32;

// A value type, thread-safe as one.
class Sums {
 public:
  Sums() = default;
  explicit Sums(int32_t dimension) : linear_(static_cast<size_t>(dimension), 0.0) {}
  Sums(int64_t count, std::vector<double> linear, double square)
      : count_(count), linear_(std::move(linear)), square_(square) {}
  // Return the sums of one vector. kInvalidArgument for a number that is not finite, or if longer than kLongestVector.
  static Result<Sums> Of(std::span<const float> vector);

  void Add(const Sums& others);
  void Subtract(const Sums& others);  // which must have been added before

  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] std::span<const double> linear() const { return linear_; }  // [dimension]
  [[nodiscard]] double square() const { return square_; }
  [[nodiscard]] int32_t dimension() const { return static_cast<int32_t>(linear_.size()); }
  bool operator==(const Sums&) const = default;

  [[nodiscard]] std::vector<float> Mean() const;  // [dimension]; zeros when there are no vectors
  // Return the mean squared distance from the mean, R^2 of BIRCH (eq. 2); 0 when there are no vectors.
  [[nodiscard]] double SquaredRadius() const;

 private:
  int64_t count_ = 0;
  std::vector<double> linear_;
  double square_ = 0;
};

// Return the squared distance of the two means. Neither may be empty.
double SquaredDistance(const Sums& a, const Sums& b);
// Return the SquaredRadius of both together.
double SquaredRadiusOfBoth(const Sums& a, const Sums& b);

}  // namespace everlong::graph
