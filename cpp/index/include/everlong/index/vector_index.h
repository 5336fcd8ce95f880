// The contract of an index over plain vectors: find the vectors that are nearest to a query.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/index_file.h"

namespace everlong::index {

enum class Metric : uint32_t { kInnerProduct, kCosine, kL2 };
// How a vector is kept. kInt8 and kE4M3 have one fp32 scale a vector. A search compares with what is kept.
enum class VectorStorage : uint32_t { kFp32, kBf16, kInt8, kE4M3 };

struct VectorHit {
  int64_t id = 0;
  float score = 0;  // inner product, cosine (0 where either vector is 0) or minus the squared distance
  bool operator==(const VectorHit&) const = default;
};

// The set of ids that a search may return, decided before it scores any.
class IdFilter {
 public:
  IdFilter() = default;  // all ids
  // Several threads call `allows`, also for ids that the search does not return. It must not call the index.
  explicit IdFilter(std::function<bool(int64_t)> allows) : allows_(std::move(allows)) {}
  // One byte an id: not 0 means that it may be returned. Ids past the end may not. The bytes must outlive the filter.
  static IdFilter Bitmap(std::span<const uint8_t> allowed) {
    const auto is_allowed = [](uint8_t byte) { return byte != 0; };
    const auto count = static_cast<size_t>(std::ranges::count_if(allowed, is_allowed));
    if (count <= allowed.size() / kFewest) {
      std::vector<int64_t> ids;
      ids.reserve(count);
      for (size_t id = 0; id < allowed.size(); ++id) {
        if (is_allowed(allowed[id])) ids.push_back(static_cast<int64_t>(id));
      }
      return Few(std::move(ids));
    }
    return IdFilter(
        [allowed](int64_t id) { return std::cmp_less(id, allowed.size()) && allowed[static_cast<size_t>(id)] != 0; });
  }
  // These ids, ascending. A search looks them up, and does not ask for every id that the index has. That is worth it
  // where they are no more than one in kFewest.
  static constexpr size_t kFewest = 16;
  static IdFilter Few(std::vector<int64_t> ids) {
    auto few = std::make_shared<const std::vector<int64_t>>(std::move(ids));
    IdFilter filter([few](int64_t id) { return std::ranges::binary_search(*few, id); });
    filter.few_ = std::move(few);
    return filter;
  }

  [[nodiscard]] bool all() const { return !allows_; }
  [[nodiscard]] bool Allows(int64_t id) const { return all() || allows_(id); }
  // Return the ids of Few; null for other filters.
  [[nodiscard]] const std::vector<int64_t>* few() const { return few_.get(); }

 private:
  std::function<bool(int64_t)> allows_;
  std::shared_ptr<const std::vector<int64_t>> few_;
};

// The hits of one query, best first.
using VectorHits = std::vector<VectorHit>;

// Thread-safe: searches run beside each other and beside one writer. Add and Remove take turns. A search sees all
// vectors of a call to Remove or none; of a call to Add it sees those added so far.
class VectorIndex {
 public:
  virtual ~VectorIndex() = default;

  // Add vectors [ids.size(), dimension()]. kInvalidArgument on a wrong size, a negative id, a NaN or a number beyond
  // +-2^48. kAlreadyExists when an id is here or given twice. Both leave the index unchanged. kCapacity when there is
  // no memory for them: a flat index is then unchanged too, a graph may have some of them.
  virtual Status Add(std::span<const int64_t> ids, std::span<const float> vectors) = 0;
  // Remove vectors and return how many of them were here. Their memory is used again.
  virtual int64_t Remove(std::span<const int64_t> ids) = 0;

  // Return, for each of queries [n, dimension()], the k best of the allowed vectors: best first, ties by the smaller
  // id; all allowed ones when k is larger. Scores are computed in fp64 from what is kept. kInvalidArgument on a wrong
  // size, a NaN, a number beyond +-2^48, or k < 1.
  [[nodiscard]] virtual Result<std::vector<VectorHits>> Search(std::span<const float> queries, int32_t k,
                                                               const IdFilter& filter) const = 0;

  // Return the kept vector, fp32 [dimension()]. With kCosine it has unit length, or is zeros. Empty: it is unknown.
  [[nodiscard]] virtual std::vector<float> Vector(int64_t id) const = 0;

  // Save to one file, replaced whole or not at all (docs/format.md, "Index files"). kIoError.
  [[nodiscard]] virtual Status Save(const IndexFile& file) const = 0;

  [[nodiscard]] virtual int32_t dimension() const = 0;
  [[nodiscard]] virtual Metric metric() const = 0;
  [[nodiscard]] virtual int64_t size() const = 0;
  [[nodiscard]] virtual std::vector<int64_t> ids() const = 0;  // in no order
  [[nodiscard]] virtual int64_t bytes() const = 0;             // of host memory
};

// An exact index: it scores every allowed vector, on all threads.
struct FlatOptions {
  int32_t dimension = 0;  // >= 1
  Metric metric = Metric::kCosine;
  VectorStorage storage = VectorStorage::kFp32;
};
std::unique_ptr<VectorIndex> MakeFlatIndex(const FlatOptions& options);
// Load what Save wrote. kNotFound, kIoError; kCorrupt when it is damaged, cut short or not a flat index.
Result<std::unique_ptr<VectorIndex>> LoadFlatIndex(const FilePath& file);

inline constexpr int32_t kMostHnswLinks = 10'000;  // the limit of hnswlib

// A graph over fp32 vectors (hnswlib). It is approximate, and exact where few vectors are allowed. A search waits for a
// millisecond of a call to Add, or until each of its threads has added a vector, however many are added.
struct HnswOptions {
  int32_t dimension = 0;  // >= 1
  Metric metric = Metric::kCosine;
  int32_t links = 16;  // M: links of a vector on every level, twice as many on the lowest; 2 to kMostHnswLinks
  int32_t ef_construction = 200;  // candidates kept while a vector is linked
  int32_t ef = 64;                // candidates kept while searching; more find more
  int32_t exact_below = 10'000;   // so many allowed vectors, or fewer, are all scored
};
std::unique_ptr<VectorIndex> MakeHnswIndex(const HnswOptions& options);
// Load as LoadFlatIndex does; also kCapacity when there is no memory for it.
Result<std::unique_ptr<VectorIndex>> LoadHnswIndex(const FilePath& file);

}  // namespace everlong::index
