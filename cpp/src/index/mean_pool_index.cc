#include "everlong/index/mean_pool_index.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "best_first.h"

namespace everlong::index {
namespace {

Status CheckVector(std::span<const float> vector, int32_t dimension) {
  if (vector.size() != static_cast<size_t>(dimension)) {
    return InvalidArgumentError("vector of " + std::to_string(vector.size()) + " numbers, expected " +
                                std::to_string(dimension));
  }
  if (!std::ranges::all_of(vector, [](float value) { return std::isfinite(value); })) {
    return InvalidArgumentError("vector holds a NaN or an infinity");
  }
  return OkStatus();
}

// 1 / length; 0 for the zero vector, whose cosine with anything is then 0.
double InverseLength(std::span<const float> vector) {
  double square = 0;
  for (const float value : vector) square += static_cast<double>(value) * value;
  return square > 0 ? 1 / std::sqrt(square) : 0;
}

}  // namespace

MeanPoolIndex::MeanPoolIndex(int32_t dimension) : dimension_(dimension) { EVERLONG_CHECK(dimension > 0); }

Status MeanPoolIndex::Add(int64_t block, std::span<const float> keys_sum, int64_t tokens) {
  EVERLONG_RETURN_IF_ERROR(CheckVector(keys_sum, dimension_));
  if (tokens < 1) return InvalidArgumentError("block of " + std::to_string(tokens) + " tokens, expected at least 1");
  if (!rows_.try_emplace(block, blocks_.size()).second) {
    return AlreadyExistsError("block " + std::to_string(block) + " is in the mean_pool index");
  }
  blocks_.push_back(block);
  // The mean and the sum have the same direction, and only the direction counts.
  const double scale = InverseLength(keys_sum);
  for (const float value : keys_sum) means_.push_back(static_cast<float>(value * scale));
  return OkStatus();
}

void MeanPoolIndex::Forget(int64_t block) {
  const auto found = rows_.find(block);
  if (found == rows_.end()) return;
  const size_t hole = found->second;
  const size_t last = blocks_.size() - 1;
  const auto width = static_cast<std::ptrdiff_t>(dimension_);
  std::copy_n(means_.end() - width, width, means_.begin() + static_cast<std::ptrdiff_t>(hole) * width);
  means_.resize(means_.size() - static_cast<size_t>(dimension_));
  blocks_[hole] = blocks_[last];
  rows_[blocks_[hole]] = hole;
  blocks_.pop_back();
  rows_.erase(block);
}

Result<std::vector<BlockHit>> MeanPoolIndex::Search(std::span<const float> query, int32_t k) const {
  EVERLONG_RETURN_IF_ERROR(CheckVector(query, dimension_));
  if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
  const double scale = InverseLength(query);
  std::vector<BlockHit> hits(blocks_.size());
  for (size_t row = 0; row < blocks_.size(); ++row) {
    const float* mean = means_.data() + row * static_cast<size_t>(dimension_);
    double dot = 0;
    for (size_t i = 0; i < query.size(); ++i) dot += static_cast<double>(query[i]) * mean[i];
    hits[row] = {blocks_[row], static_cast<float>(dot * scale)};
  }
  KeepBestFirst(hits, static_cast<size_t>(k), [](const BlockHit& hit) { return hit.block; });
  return hits;
}

}  // namespace everlong::index
