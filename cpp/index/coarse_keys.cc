#include "coarse_keys.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "everlong/base/parallel_for.h"
#include "heads_kernel.h"

namespace everlong::index {
namespace {

constexpr int32_t kSamplePages = 1024;
constexpr int32_t kPagesAtOnce = 4096;  // projected into one buffer, by several threads

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

  [[nodiscard]] std::vector<double> matrix() const {
    std::vector<double> matrix(products_);
    if (count_ == 0) return matrix;
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t j = 0; j < dim_; ++j) matrix[i * dim_ + j] -= mean_[i] * mean_[j] / count_;
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

CoarseKeys::CoarseKeys(int32_t key_heads, int32_t head_dim)
    : key_heads_(key_heads), head_dim_(head_dim), tiles_(key_heads, DimsOf(head_dim)) {}

void CoarseKeys::Learn(const KeyTiles& keys, const StableVector<int32_t>& sinks, int32_t pages) {
  EVERLONG_CHECK(!learned());
  const auto dim = static_cast<size_t>(head_dim_);
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  axes_.resize(static_cast<size_t>(key_heads_) * AxesSize());
  const int32_t step = std::max(1, pages / kSamplePages);
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
      const std::vector<double> vectors = Eigenvectors(covariance.matrix(), dim);
      float* const axes = axes_.data() + static_cast<size_t>(key_head) * AxesSize();
      for (size_t i = 0; i < dim; ++i) {
        for (size_t axis = 0; axis < std::min(dim, dims); ++axis) {
          axes[i * dims + axis] = static_cast<float>(vectors[axis * dim + i]);
        }
      }
    }
  });
}

void CoarseKeys::Project(int32_t key_head, std::span<const float> query, std::span<float> out) const {
  const auto dims = static_cast<size_t>(DimsOf(head_dim_));
  const float* axes = AxesOf(key_head);
  std::ranges::fill(out, 0.0F);
  for (const float value : query) {
    for (size_t axis = 0; axis < dims; ++axis) out[axis] += value * axes[axis];
    axes += dims;
  }
}

std::vector<uint32_t> CoarseKeys::Projected(const KeyTiles& keys, int32_t page, std::vector<uint32_t>& room) const {
  const int32_t tokens = keys.tokens(page);
  std::vector<uint32_t> words(tokens == 0 ? 0 : tiles_.PageWords(tokens));
  if (words.empty()) return words;
  const HeadsKernel& kernel = BestHeadsKernel();
  const int32_t pairs = PairsOf(head_dim_);
  const KeyLayout wide{KeyStorage::kBf16, head_dim_};
  const KeyLayout narrow{KeyStorage::kBf16, DimsOf(head_dim_)};
  for (int32_t key_head = 0; key_head < key_heads_; ++key_head) {
    const uint32_t* tiles = keys.keys(page, key_head);
    if (keys.storage() != KeyStorage::kBf16) {
      room.resize(static_cast<size_t>(wide.HeadWords(tokens)));
      ExpandBytes(keys.storage(), {keys.scales(page, key_head), tiles, TilesOf(tokens), pairs}, room.data());
      tiles = room.data();
    }
    uint32_t* out = words.data() + key_head * narrow.HeadWords(tokens);
    for (int32_t tile = 0; tile < TilesOf(tokens); ++tile) {
      kernel.project(tiles, pairs, AxesOf(key_head), narrow.head_dim, out);
      tiles += wide.TileWords();
      out += narrow.TileWords();
    }
  }
  return words;
}

bool CoarseKeys::Follow(const KeyTiles& keys) {
  EVERLONG_CHECK(learned());
  while (tiles_.pages() < keys.pages()) {
    const int32_t begin = tiles_.pages();
    const int32_t count = std::min(kPagesAtOnce, keys.pages() - begin);
    std::vector<std::vector<uint32_t>> projected(static_cast<size_t>(count));
    ParallelFor(0, count, 16, [&](int64_t first, int64_t last) {
      std::vector<uint32_t> room;
      for (int64_t at = first; at < last; ++at) {
        projected[static_cast<size_t>(at)] = Projected(keys, begin + static_cast<int32_t>(at), room);
      }
    });
    for (int32_t at = 0; at < count; ++at) {
      const int32_t tokens = keys.tokens(begin + at);
      if (tokens == 0) {
        tiles_.AddEmpty();
        continue;
      }
      if (!tiles_.AreKeys(projected[static_cast<size_t>(at)], tokens)) return false;
      tiles_.AddWords(projected[static_cast<size_t>(at)], tokens);
    }
  }
  return true;
}

int64_t CoarseKeys::bytes() const { return tiles_.bytes() + static_cast<int64_t>(axes_.capacity() * sizeof(float)); }

}  // namespace everlong::index
