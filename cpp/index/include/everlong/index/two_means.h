// 2-means, to split a centre or list that is too wide or too full.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace everlong::index {

// Points [n, dimension], each with a weight.
struct WeightedPoints {
  std::vector<float> points;
  std::vector<double> weights;  // [n], > 0
  int32_t dimension = 0;
};

// Return which of two sides each point is on. It begins on either side of the mean along the principal axis, found by
// power iteration from a vector drawn with `seed`, and goes on with Lloyd's algorithm. With `balanced`, a side that
// would get less than an eighth of the points makes it split at the median along the axis instead. Points that nothing
// tells apart are all on side false; with `balanced`, half of them.
std::vector<bool> TwoMeans(const WeightedPoints& points, uint64_t seed, bool balanced);

}  // namespace everlong::index
