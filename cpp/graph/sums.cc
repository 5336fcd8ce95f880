#include "everlong/graph/sums.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "everlong/base/check.h"

namespace everlong::graph {
namespace {

// Round to the nearest, halves to even, as every sum in double is rounded: this sum has no bits below the grid. Numbers
// for which that is not so are longer than a vector may be.
double OnGrid(double value) {
  constexpr double kAll = 0x1.8p52 * kGrid;
  return (value + kAll) - kAll;
}

}  // namespace

Result<Sums> Sums::Of(std::span<const float> vector) {
  std::vector<double> linear;
  linear.reserve(vector.size());
  double square = 0;
  for (const float value : vector) {
    linear.push_back(OnGrid(double{value}));
    square += linear.back() * linear.back();
  }
  if (!(square <= kLongestVector * kLongestVector)) {  // NaN too
    return InvalidArgumentError("a vector has the length " + std::to_string(std::sqrt(square)) + ", expected at most " +
                                std::to_string(static_cast<int64_t>(kLongestVector)));
  }
  return Sums(1, std::move(linear), OnGrid(square));
}

void Sums::Add(const Sums& others) {
  EVERLONG_CHECK(linear_.size() == others.linear_.size());
  count_ += others.count_;
  for (size_t i = 0; i < linear_.size(); ++i) linear_[i] += others.linear_[i];
  square_ += others.square_;
}

void Sums::Subtract(const Sums& others) {
  EVERLONG_CHECK(linear_.size() == others.linear_.size() && count_ >= others.count_);
  count_ -= others.count_;
  for (size_t i = 0; i < linear_.size(); ++i) linear_[i] -= others.linear_[i];
  square_ -= others.square_;
}

std::vector<float> Sums::Mean() const {
  std::vector<float> mean(linear_.size(), 0.0F);
  if (count_ == 0) return mean;
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = static_cast<float>(linear_[i] / static_cast<double>(count_));
  return mean;
}

double Sums::SquaredRadius() const {
  if (count_ == 0) return 0;
  const auto count = static_cast<double>(count_);
  double square_of_mean = 0;
  for (const double sum : linear_) square_of_mean += (sum / count) * (sum / count);
  return std::max(0.0, square_ / count - square_of_mean);
}

double SquaredDistance(const Sums& a, const Sums& b) {
  const double of_a = 1 / static_cast<double>(a.count());
  const double of_b = 1 / static_cast<double>(b.count());
  double distance = 0;
  for (size_t i = 0; i < a.linear().size(); ++i) {
    const double apart = a.linear()[i] * of_a - b.linear()[i] * of_b;
    distance += apart * apart;
  }
  return distance;
}

double SquaredRadiusOfBoth(const Sums& a, const Sums& b) {
  const auto count = static_cast<double>(a.count() + b.count());
  if (count == 0) return 0;
  double square_of_mean = 0;
  for (size_t i = 0; i < a.linear().size(); ++i) {
    const double mean = (a.linear()[i] + b.linear()[i]) / count;
    square_of_mean += mean * mean;
  }
  return std::max(0.0, (a.square() + b.square()) / count - square_of_mean);
}

}  // namespace everlong::graph
