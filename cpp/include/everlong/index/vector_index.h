// The contract of every index over plain vectors: which vectors are nearest to a query.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong::index {

enum class Metric : uint32_t { kInnerProduct, kCosine, kL2 };
// How a vector is kept. int8 and e4m3 have one fp32 scale a vector; what is searched is what is kept.
enum class VectorStorage : uint32_t { kFp32, kBf16, kInt8, kE4M3 };

struct VectorHit {
  int64_t id = 0;
  float score = 0;  // inner product, cosine (0 where either vector is 0) or minus the squared distance
  bool operator==(const VectorHit&) const = default;
};

// Which ids a search may return, decided before anything is scored.
class IdFilter {
 public:
  IdFilter() = default;  // all
  // Called from several threads at once, and for ids that a search then does not return. It must not call the index.
  explicit IdFilter(std::function<bool(int64_t)> allows) : allows_(std::move(allows)) {}
  // One byte an id, not 0 = may be returned; ids past the end may not. The bytes outlive the filter.
  static IdFilter Bitmap(std::span<const uint8_t> allowed) {
    return IdFilter(
        [allowed](int64_t id) { return std::cmp_less(id, allowed.size()) && allowed[static_cast<size_t>(id)] != 0; });
  }

  [[nodiscard]] bool all() const { return !allows_; }
  [[nodiscard]] bool Allows(int64_t id) const { return all() || allows_(id); }

 private:
  std::function<bool(int64_t)> allows_;
};

// The hits of one query, best first.
using VectorHits = std::vector<VectorHit>;

// Thread-safe: searches run beside each other and beside one writer; Add and Remove take turns, and a search sees every
// vector or none of a call to Remove, and of a call to Add what has been added so far.
class VectorIndex {
 public:
  virtual ~VectorIndex() = default;

  // vectors [ids.size(), dimension()]. kInvalidArgument on a wrong size, a negative id, a NaN or a number beyond
  // +-2^48; kAlreadyExists when an id is here or named twice. The index is then unchanged. kCapacity when there is no
  // memory for them: a flat index is unchanged then too, a graph may have some of them.
  virtual Status Add(std::span<const int64_t> ids, std::span<const float> vectors) = 0;
  // How many of them were here. Their room is used again.
  virtual int64_t Remove(std::span<const int64_t> ids) = 0;

  // The k best of the allowed vectors for each of queries [n, dimension()], best first, ties by the smaller id; all
  // that are allowed when k is larger. Scores are computed in fp64 from what is kept. kInvalidArgument on a wrong size,
  // a NaN, a number beyond +-2^48, or k < 1.
  [[nodiscard]] virtual Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                                               const IdFilter& filter) const = 0;

  // What is kept of a vector, fp32 [dimension()]: of kCosine one of unit length, or zeros. Empty: it is not here.
  [[nodiscard]] virtual std::vector<float> Vector(int64_t id) const = 0;

  // One file, replaced whole or not at all (docs/format.md, "Index files"). kIoError.
  [[nodiscard]] virtual Status Save(const FilePath& file) const = 0;

  [[nodiscard]] virtual int32_t dimension() const = 0;
  [[nodiscard]] virtual Metric metric() const = 0;
  [[nodiscard]] virtual int64_t size() const = 0;
  [[nodiscard]] virtual std::vector<int64_t> ids() const = 0;  // in no order
  [[nodiscard]] virtual int64_t bytes() const = 0;             // of host memory
};

// Exact: every allowed vector is scored, on all threads.
struct FlatOptions {
  int32_t dimension = 0;  // >= 1
  Metric metric = Metric::kCosine;
  VectorStorage storage = VectorStorage::kFp32;
};
std::unique_ptr<VectorIndex> MakeFlatIndex(const FlatOptions& options);
// What Save wrote. kNotFound, kIoError; kCorrupt when it is damaged, cut short or no flat index.
Result<std::unique_ptr<VectorIndex>> LoadFlatIndex(const FilePath& file);

inline constexpr int32_t kMostHnswLinks = 10'000;  // hnswlib itself takes no more

// A graph over fp32 vectors (hnswlib): approximate, and exact where few vectors are allowed.
struct HnswOptions {
  int32_t dimension = 0;  // >= 1
  Metric metric = Metric::kCosine;
  int32_t links = 16;  // M: links of a vector on every level, twice as many on the lowest; 2 to kMostHnswLinks
  int32_t ef_construction = 200;  // candidates kept while a vector is linked
  int32_t ef = 64;                // candidates kept while searching; more find more
  int32_t exact_below = 10'000;   // so many allowed vectors or fewer are all scored
};
std::unique_ptr<VectorIndex> MakeHnswIndex(const HnswOptions& options);
// As LoadFlatIndex, and kCapacity when there is no memory for it.
Result<std::unique_ptr<VectorIndex>> LoadHnswIndex(const FilePath& file);

}  // namespace everlong::index
