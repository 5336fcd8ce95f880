#include "coarse_keys.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "everlong/base/parallel_for.h"
#include "heads_kernel.h"  // ExpandBytes

namespace everlong::index {
namespace {

constexpr int32_t kSamplePages = 1024;
constexpr int32_t kPagesAtOnce = 4096;  // encoded by several threads
// The codes reach so many standard deviations to both sides of the mean; keys beyond get the last code.
constexpr double kReach = 2.5;
constexpr float kLeastReach = 1e-30F;

// The covariance [D, D] of vectors [n, D], as sums while the vectors come in.
class Covariance {
 public:
  explicit Covariance(int32_t dim) : dim_(static_cast<size_t>(dim)), mean_(dim_), products_(dim_ * dim_) {}

  void Add(std::span<const float> vectors) {
    for (size_t first = 0; first < vectors.size(); first += dim_) {
      const std::span<const float> vector = vectors.subspan(first, dim_);
      for (size_t i = 0; i < dim_; ++i) {
        const double value = vector[i];
        mean_[i] += value;
        for (size_t j = 0; j < dim_; ++j) products_[i * dim_ + j] += value * vector[j];
      }
      ++count_;
    }
  }

  [[nodiscard]] std::vector<double> mean() const {
    std::vector<double> mean(mean_);
    for (double& value : mean) value /= std::max(count_, 1.0);
    return mean;
  }

  // Divided by the number of vectors.
  [[nodiscard]] std::vector<double> matrix() const {
    std::vector<double> matrix(products_);
    if (count_ == 0) return matrix;
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t j = 0; j < dim_; ++j) {
        matrix[i * dim_ + j] = (matrix[i * dim_ + j] - mean_[i] * mean_[j] / count_) / count_;
      }
    }
    return matrix;
  }

 private:
  size_t dim_;
  std::vector<double> mean_;      // times count_
  std::vector<double> products_;  // times count_
  double count_ = 0;
};

// Return the eigenvectors of a symmetric matrix [n, n] as rows, those of the largest eigenvalues first, by cyclic
// Jacobi rotations (Golub and Van Loan, Matrix Computations, 8.5).
std::vector<double> Eigenvectors(std::vector<double> a, size_t n) {
  std::vector<double> vectors(n * n, 0.0);  // rows
  for (size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  constexpr int kMostSweeps = 30;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0;
    double all = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) (i == j ? all : off) += a[i * n + j] * a[i * n + j];
    }
    if (off <= 1e-20 * all) break;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0) continue;
        const double tau = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = std::copysign(1.0, tau) / (std::abs(tau) + std::sqrt(1 + tau * tau));
        const double c = 1 / std::sqrt(1 + t * t);
        const double s = t * c;
        for (size_t i = 0; i < n; ++i) {
          const double ip = a[i * n + p];
          const double iq = a[i * n + q];
          a[i * n + p] = c * ip - s * iq;
          a[i * n + q] = s * ip + c * iq;
        }
        const auto turn_rows = [&](std::vector<double>& matrix) {
          for (size_t i = 0; i < n; ++i) {
            const double pi = matrix[p * n + i];
            const double qi = matrix[q * n + i];
            matrix[p * n + i] = c * pi - s * qi;
            matrix[q * n + i] = s * pi + c * qi;
          }
        };
        turn_rows(a);
        turn_rows(vectors);
      }
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t i, size_t j) { return a[i * n + i] > a[j * n + j]; });
  std::vector<double> sorted;
  for (const size_t row : order) {
    sorted.insert(sorted.end(), vectors.begin() + static_cast<std::ptrdiff_t>(row * n),
                  vectors.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
  }
  return sorted;
}

}  // namespace

CoarseKeys::CoarseKeys(int32_t key_heads, int32_t head_dim) : key_heads_(key_heads), head_dim_(head_dim) {}

CoarseAxes CoarseKeys::Empty() const {
  const auto heads = static_cast<size_t>(key_heads_);
  const size_t dims = heads * static_cast<size_t>(DimsOf(head_dim_));
  return {std::vector<float>(heads * AxesSize()), std::vector<float>(dims), std::vector<float>(dims)};
}

bool CoarseKeys::Learn(const KeyTiles& keys, const StableVector<int32_t>& sinks, int32_t pages) {
  EVERLONG_CHECK(!learned());
  const auto dim = static_cast<size_t>(head_dim_);
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  CoarseAxes learned = Empty();
  const int32_t step = std::max(1, pages / kSamplePages);
  std::atomic<bool> are_numbers = true;
  ParallelFor(0, key_heads_, 1, [&](int64_t first, int64_t last) {
    std::vector<float> page_keys;
    for (auto key_head = static_cast<int32_t>(first); key_head < last; ++key_head) {
      Covariance covariance(head_dim_);
      for (int32_t page = 0; page < pages; page += step) {
        if (keys.tokens(page) == 0) continue;
        page_keys.resize(static_cast<size_t>(keys.tokens(page)) * dim);
        keys.Decode(page, key_head, page_keys);
        covariance.Add(std::span(page_keys).subspan(static_cast<size_t>(sinks[page]) * dim));
      }
      const std::vector<double> mean = covariance.mean();
      const std::vector<double> matrix = covariance.matrix();
      if (!std::ranges::all_of(matrix, [](double value) { return std::isfinite(value); })) {
        are_numbers = false;
        continue;
      }
      const std::vector<double> vectors = Eigenvectors(matrix, dim);
      float* const axes = learned.axes.data() + static_cast<size_t>(key_head) * AxesSize();
      for (size_t axis = 0; axis < dims; ++axis) {
        double middle = 0;
        double variance = 0;
        for (size_t i = 0; i < dim && axis < dim; ++i) {
          const double* const vector = vectors.data() + axis * dim;
          axes[i * dims + axis] = static_cast<float>(vector[i]);
          middle += vector[i] * mean[i];
          for (size_t j = 0; j < dim; ++j) variance += vector[i] * vector[j] * matrix[i * dim + j];
        }
        // Where all keys are the same, any step will do.
        const double reach = std::max(kReach * std::sqrt(std::max(variance, 0.0)), double{kLeastReach});
        const size_t at = static_cast<size_t>(key_head) * dims + axis;
        learned.least[at] = static_cast<float>(middle - reach);
        learned.steps[at] = static_cast<float>(2 * reach / kLargestCode);
      }
    }
  });
  if (!are_numbers) return false;
  axes_ = std::move(learned);
  Prepare();
  return true;
}

bool CoarseKeys::Use(CoarseAxes axes) {
  const CoarseAxes shape = Empty();
  if (axes.axes.size() != shape.axes.size() || axes.least.size() != shape.least.size() ||
      axes.steps.size() != shape.steps.size()) {
    return false;
  }
  const auto finite = [](std::span<const float> values) {
    return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  };
  const bool usable = finite(axes.axes) && finite(axes.least) && finite(axes.steps) &&
                      std::ranges::all_of(axes.steps, [](float step) { return step >= kLeastReach / kLargestCode; });
  if (!usable) return false;
  axes_ = std::move(axes);
  Prepare();
  return true;
}

void CoarseKeys::Prepare() {
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  scaled_axes_ = axes_.axes;
  for (size_t at = 0; at < scaled_axes_.size(); ++at) {
    scaled_axes_[at] /= axes_.steps[at / AxesSize() * dims + at % dims];
  }
  offsets_.resize(axes_.least.size());
  for (size_t at = 0; at < offsets_.size(); ++at) offsets_[at] = 0.5F - axes_.least[at] / axes_.steps[at];
}

void CoarseKeys::Project(int32_t key_head, std::span<const float> query, std::span<float> out) const {
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  const float* axes = axes_.axes.data() + static_cast<size_t>(key_head) * AxesSize();
  std::ranges::fill(out, 0.0F);
  for (const float value : query) {
    for (size_t axis = 0; axis < dims; ++axis) out[axis] += value * axes[axis];
    axes += dims;
  }
  for (size_t axis = 0; axis < dims; ++axis) out[axis] *= axes_.steps[static_cast<size_t>(key_head) * dims + axis];
}

void CoarseKeys::Encode(const KeyTiles& keys, int32_t page, std::vector<uint32_t>& room, uint32_t* out) const {
  const int32_t tokens = keys.tokens(page);
  const CoarseKernel& kernel = BestCoarseKernel();
  const int32_t pairs = PairsOf(head_dim_);
  const KeyLayout wide{KeyStorage::kBf16, head_dim_};
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  for (int32_t key_head = 0; key_head < key_heads_; ++key_head) {
    const uint32_t* tiles = keys.keys(page, key_head);
    if (keys.storage() != KeyStorage::kBf16) {
      room.resize(static_cast<size_t>(wide.HeadWords(tokens)));
      ExpandBytes(keys.storage(), {keys.scales(page, key_head), tiles, TilesOf(tokens), pairs}, room.data());
      tiles = room.data();
    }
    const float* const axes = scaled_axes_.data() + static_cast<size_t>(key_head) * AxesSize();
    const float* const offsets = offsets_.data() + static_cast<size_t>(key_head) * dims;
    for (int32_t tile = 0; tile < TilesOf(tokens); ++tile) {
      kernel.encode(tiles, pairs, axes, offsets, token_words(), out);
      tiles += wide.TileWords();
      out += token_words() * kTileTokens;
    }
  }
}

void CoarseKeys::Follow(const KeyTiles& keys) {
  EVERLONG_CHECK(learned());
  std::vector<uint32_t*> words;
  while (pages() < keys.pages()) {
    const int32_t begin = pages();
    const int32_t count = std::min(kPagesAtOnce, keys.pages() - begin);
    words.assign(static_cast<size_t>(count), nullptr);
    for (int32_t at = 0; at < count; ++at) {
      const size_t size = PageWords(keys.tokens(begin + at));
      if (size > 0) words[static_cast<size_t>(at)] = room_.Reserve(size);
    }
    ParallelFor(0, count, 16, [&](int64_t first, int64_t last) {
      std::vector<uint32_t> room;
      for (int64_t at = first; at < last; ++at) {
        Encode(keys, begin + static_cast<int32_t>(at), room, words[static_cast<size_t>(at)]);
      }
    });
    for (uint32_t* const page : words) pages_.push_back(page);
  }
}

void CoarseKeys::Forget(int32_t page, int32_t tokens) {
  if (tokens > 0) room_.Release({pages_[page], PageWords(tokens)});
  pages_[page] = nullptr;
}

int64_t CoarseKeys::bytes() const {
  const size_t floats = axes_.axes.size() + scaled_axes_.size() + 2 * axes_.least.size() + offsets_.size();
  return room_.bytes() + pages_.bytes() + static_cast<int64_t>(floats * sizeof(float));
}

}  // namespace everlong::index
