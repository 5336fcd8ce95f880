// What is known of a set of vectors without keeping them: how many, their sum, the sum of their squared lengths. The
// clustering features of BIRCH (Zhang, Ramakrishnan and Livny, 1996, section 4.1), on a grid on which they are exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::graph {

// Numbers of a vector, and its squared length, are rounded to multiples of this before they are added. In double no sum
// of them is rounded, so neither the order of additions nor what was taken out again changes a bit: up to 2^31 vectors
// of unit length, up to 2^21 of kLongestVector.
inline constexpr double kGrid = 0x1p-22;
inline constexpr double kLongestVector = 32;

// A value; thread-safe as one.
class Sums {
 public:
  Sums() = default;
  explicit Sums(int32_t dimension) : linear_(static_cast<size_t>(dimension), 0.0) {}
  Sums(int64_t count, std::vector<double> linear, double square)
      : count_(count), linear_(std::move(linear)), square_(square) {}
  // Of one vector. kInvalidArgument for a number that is not finite, and for one longer than kLongestVector.
  static Result<Sums> Of(std::span<const float> vector);

  void Add(const Sums& others);
  void Subtract(const Sums& others);  // of what was added

  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] std::span<const double> linear() const { return linear_; }  // [dimension]
  [[nodiscard]] double square() const { return square_; }
  [[nodiscard]] int32_t dimension() const { return static_cast<int32_t>(linear_.size()); }
  bool operator==(const Sums&) const = default;

  [[nodiscard]] std::vector<float> Mean() const;  // [dimension]; zeros of none
  // Mean squared distance from the mean, R^2 of BIRCH (eq. 2); 0 of none.
  [[nodiscard]] double SquaredRadius() const;

 private:
  int64_t count_ = 0;
  std::vector<double> linear_;
  double square_ = 0;
};

// Of the means; both have some vectors.
double SquaredDistance(const Sums& a, const Sums& b);
// Sums::SquaredRadius of both together.
double SquaredRadiusOfBoth(const Sums& a, const Sums& b);

}  // namespace everlong::graph
