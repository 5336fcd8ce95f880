#include "everlong/index/two_means.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "everlong/base/mixed_bits.h"

namespace everlong::index {
namespace {

constexpr int kPowerSteps = 12;
constexpr int kLloydSteps = 12;

std::span<const float> Row(const WeightedPoints& of, size_t i) {
  const auto width = static_cast<size_t>(of.dimension);
  return std::span(of.points).subspan(i * width, width);
}

double Dot(std::span<const float> row, std::span<const double> axis) {
  double dot = 0;
  for (size_t i = 0; i < row.size(); ++i) dot += double{row[i]} * axis[i];
  return dot;
}

double SquaredDistance(std::span<const float> row, std::span<const double> to) {
  double distance = 0;
  for (size_t i = 0; i < row.size(); ++i) distance += (double{row[i]} - to[i]) * (double{row[i]} - to[i]);
  return distance;
}

// Return the mean of the points for which `taken` is true.
template <class Taken>
std::vector<double> MeanOf(const WeightedPoints& of, const Taken& taken) {
  std::vector<double> mean(static_cast<size_t>(of.dimension), 0.0);
  double weight = 0;
  for (size_t i = 0; i < of.weights.size(); ++i) {
    if (!taken(i)) continue;
    weight += of.weights[i];
    const std::span<const float> row = Row(of, i);
    for (size_t j = 0; j < row.size(); ++j) mean[j] += of.weights[i] * double{row[j]};
  }
  for (double& value : mean) value /= weight > 0 ? weight : 1;
  return mean;
}

// Return how far along the principal axis each point lies from the mean.
std::vector<double> AlongTheAxis(const WeightedPoints& of, uint64_t seed) {
  const size_t count = of.weights.size();
  const std::vector<double> mean = MeanOf(of, [](size_t) { return true; });
  std::vector<double> axis;
  for (size_t j = 0; j < mean.size(); ++j) {
    axis.push_back(static_cast<double>(MixedBits(seed, j) >> 11U) * 0x1p-53 - 0.5);
  }
  std::vector<double> along(count, 0.0);
  for (int step = 0; step <= kPowerSteps; ++step) {
    const double length = std::sqrt(std::inner_product(axis.begin(), axis.end(), axis.begin(), 0.0));
    if (length == 0) break;
    for (double& value : axis) value /= length;
    const double of_mean = std::inner_product(mean.begin(), mean.end(), axis.begin(), 0.0);
    for (size_t i = 0; i < count; ++i) along[i] = Dot(Row(of, i), axis) - of_mean;
    if (step == kPowerSteps) break;
    std::vector<double> next(axis.size(), 0.0);
    for (size_t i = 0; i < count; ++i) {
      const std::span<const float> row = Row(of, i);
      const double pull = along[i] * of.weights[i];
      for (size_t j = 0; j < next.size(); ++j) next[j] += pull * (double{row[j]} - mean[j]);
    }
    axis = std::move(next);
  }
  return along;
}

}  // namespace

std::vector<bool> TwoMeans(const WeightedPoints& points, uint64_t seed, bool balanced) {
  const size_t count = points.weights.size();
  const std::vector<double> along = AlongTheAxis(points, seed);
  std::vector<bool> side(count, false);
  for (size_t i = 0; i < count; ++i) side[i] = along[i] > 0;
  const auto on_right = [&side] { return static_cast<size_t>(std::ranges::count(side, true)); };
  for (int step = 0; step < kLloydSteps && on_right() > 0 && on_right() < count; ++step) {
    const std::array means = {MeanOf(points, [&side](size_t i) { return !side[i]; }),
                              MeanOf(points, [&side](size_t i) { return side[i]; })};
    bool changed = false;
    for (size_t i = 0; i < count; ++i) {
      const std::span<const float> row = Row(points, i);
      const bool nearer = SquaredDistance(row, means[1]) < SquaredDistance(row, means[0]);
      changed = changed || nearer != side[i];
      side[i] = nearer;
    }
    if (!changed) break;
  }
  const size_t right = on_right();
  if (balanced && 8 * std::min(right, count - right) < count) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&along](size_t i) { return along[i]; });
    for (size_t rank = 0; rank < count; ++rank) side[order[rank]] = rank >= count / 2;
  } else if (right == count) {
    side.assign(count, false);
  }
  return side;
}

}  // namespace everlong::index
