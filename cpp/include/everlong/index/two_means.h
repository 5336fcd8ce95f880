// 2-means: the split of a centre or list that is too wide or too full.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace everlong::index {

// Points [n, dimension] with a weight each.
struct WeightedPoints {
  std::vector<float> points;
  std::vector<double> weights;  // [n], > 0
  int32_t dimension = 0;
};

// Which of two sides each point is on. Begins on either side of the mean along the principal axis, which is found by
// power iteration from a vector drawn by `seed`, and goes on with Lloyd's algorithm. `balanced`: where one side would
// have less than an eighth of the points, they are parted at the median along the axis instead. All are on side false
// where nothing tells them apart; with `balanced` half of them even then.
std::vector<bool> TwoMeans(const WeightedPoints& points, uint64_t seed, bool balanced);

}  // namespace everlong::index
