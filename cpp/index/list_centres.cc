#include "list_centres.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace everlong::index {

std::vector<int32_t> BestLists(std::span<const float> scores, size_t count, int32_t without) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase(order, without);
  const auto kept = static_cast<std::ptrdiff_t>(std::min(count, order.size()));
  std::ranges::partial_sort(order, order.begin() + kept, [&](int32_t a, int32_t b) {
    return scores[At(a)] != scores[At(b)] ? scores[At(a)] > scores[At(b)] : a < b;
  });
  order.resize(At(kept));
  return order;
}

double ListCentres::Measure(std::span<const float> centroid) {
  double square = 0;
  for (const float value : centroid) square += double{value} * value;
  half_squares_.push_back(static_cast<float>(square / 2));
  return square;
}

void ListCentres::Add(std::span<const float> centroid, const Learned& learned) {
  centroids_.insert(centroids_.end(), centroid.begin(), centroid.end());
  const double square = Measure(centroid);
  // With kL2, minus the squared distance, without the query's own part: 2 q . c - |c|^2.
  const float times = is_l2_ ? 2.0F : 1.0F;
  const float base = is_l2_ ? static_cast<float>(-square) : 0.0F;
  for (size_t i = 0; i < centroid.size(); ++i) routers_.push_back(times * centroid[i] + learned.vector[i]);
  biases_.push_back(base + learned.bias);
}

ListCentres::Learned ListCentres::LearnedOf(int32_t list) const {
  const float times = is_l2_ ? 2.0F : 1.0F;
  Learned learned{std::vector<float>(At(width_)), 0};
  for (size_t i = 0; i < learned.vector.size(); ++i) {
    learned.vector[i] = router(At(list))[i] - times * centroid(At(list))[i];
  }
  const float base = is_l2_ ? -2 * half_squares_[At(list)] : 0.0F;
  learned.bias = biases_[At(list)] - base;
  return learned;
}

void ListCentres::Drop(int32_t list) {
  const size_t last = biases_.size() - 1;
  if (At(list) != last) {
    for (CacheLineVector<float>* of : {&centroids_, &routers_}) {
      std::memcpy(of->data() + list * width_, of->data() + At(width_) * last, At(width_) * sizeof(float));
    }
    half_squares_[At(list)] = half_squares_[last];
    biases_[At(list)] = biases_[last];
  }
  centroids_.resize(last * At(width_));
  routers_.resize(last * At(width_));
  half_squares_.pop_back();
  biases_.pop_back();
}

void ListCentres::SetRouter(size_t list, std::span<const float> vector, float bias) {
  std::ranges::copy(vector, routers_.begin() + static_cast<std::ptrdiff_t>(list) * width_);
  biases_[list] = bias;
}

void ListCentres::Score(const CacheLineVector<float>& by, const float* vector, std::vector<float>& scores) const {
  scores.resize(biases_.size());
  const StoredRows rows = {reinterpret_cast<const std::byte*>(by.data()), width_ * int64_t{sizeof(float)},
                           std::ssize(biases_), width_, nullptr};
  BestVectorKernel().dot[At(static_cast<int64_t>(VectorStorage::kFp32))](rows, vector, 1, scores.data());
}

void ListCentres::Nearness(const float* vector, std::vector<float>& of_lists) const {
  Score(centroids_, vector, of_lists);
  for (size_t list = 0; list < of_lists.size(); ++list) of_lists[list] -= half_squares_[list];
}

std::vector<float> ListCentres::Routed(const float* query) const {
  std::vector<float> scores;
  Score(routers_, query, scores);
  for (size_t list = 0; list < scores.size(); ++list) scores[list] += biases_[list];
  return scores;
}

void ListCentres::Write(IndexFileWriter& writer) const {
  writer.WriteAll(std::span<const float>(centroids_));
  writer.WriteAll(std::span<const float>(routers_));
  writer.WriteAll(std::span<const float>(biases_));
}

Status ListCentres::Read(IndexFileReader& reader, size_t lists) {
  const size_t width = At(width_);
  centroids_.resize(lists * width);
  routers_.resize(lists * width);
  biases_.resize(lists);
  const std::span<float> arrays[] = {centroids_, routers_, biases_};
  for (const std::span<float> array : arrays) EVERLONG_RETURN_IF_ERROR(reader.ReadAll(array));
  for (const std::span<float> array : arrays) {
    if (!std::ranges::all_of(array, [](float value) { return std::isfinite(value); })) {
      return reader.Corrupt("its lists are invalid");
    }
  }
  for (size_t list = 0; list < lists; ++list) Measure({centroid(list), width});
  return OkStatus();
}

}  // namespace everlong::index
