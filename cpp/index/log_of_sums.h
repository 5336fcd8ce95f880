// Sums of exponentials of numbers of any size.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace everlong::index {

// The logarithm of a sum of exponentials of many numbers, and of `zeros` terms that are 0. Minus infinity for none.
class LogOfSums {
 public:
  void Add(double value) {
    if (value > largest_) {
      sum_ *= std::exp(largest_ - value);
      largest_ = value;
    }
    sum_ += std::exp(value - largest_);
  }
  [[nodiscard]] double With(double zeros) const {
    if (sum_ == 0) return std::log(zeros);
    const double top = zeros > 0 ? std::max(0.0, largest_) : largest_;
    return top + std::log(sum_ * std::exp(largest_ - top) + zeros * std::exp(-top));
  }

 private:
  double largest_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
};

}  // namespace everlong::index
