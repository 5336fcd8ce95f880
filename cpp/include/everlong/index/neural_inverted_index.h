// DNII: an inverted index over vectors whose lists are learned, and so is the way from a query to them.
//
// Both designs, 2.3 and Phase 3. Lists grow with the vectors: one that is too full is split in two and its neighbours'
// members go to whichever half is nearer to them, one that removals left too small is given up (the Gardener's rule;
// SPFresh, Xu et al. 2023, arXiv 2410.14452). A query probes the lists that a router scores highest; without a trained
// one that is the nearest centroids, with one a vector and bias a list (Vecchiato et al. 2024, arXiv 2404.11731). In a
// list the rest of each vector behind its centroid is kept in
// int8; what scores best is scored again from fp32. Token ids may name vectors too: HI^2 (Zhang et al. 2022,
// arXiv 2210.05521).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {

inline constexpr size_t kMostTerms = 64;  // of one vector
inline constexpr int32_t kLeastListVectors = 8;
inline constexpr int32_t kMostListVectors = 1 << 20;

struct NeuralInvertedOptions {
  int32_t dimension = 0;  // >= 1
  Metric metric = Metric::kCosine;
  int32_t list_vectors = 256;    // a list with twice as many is split, one that falls below an eighth is given up
  int32_t probes = 32;           // lists that a query looks into; more find more
  int32_t rescored = 64;         // candidates that are scored again from fp32, four for each wanted hit at least
  int32_t exact_below = 10'000;  // so many allowed vectors or fewer are all scored
};

// What of a query goes beyond its vector.
struct InvertedQuery {
  int32_t probes = 0;  // 0: as the options say
  // Token ids, for each query; empty: of none. NOLINTNEXTLINE(readability-redundant-member-init): may be left out
  std::vector<std::vector<int32_t>> terms{};
};

// Thread-safe as every VectorIndex; the calls below count as writers, but for the const ones.
class NeuralInvertedIndex : public VectorIndex {
 public:
  // Where the lists' centres are.
  struct Lists {
    std::vector<int64_t> ids;      // ascending; a list that is split is two new ones
    std::vector<float> centroids;  // [lists, dimension]
    std::vector<int64_t> sizes;    // vectors in each
  };
  [[nodiscard]] virtual Lists lists() const = 0;
  // The list of each vector, -1 for one that is not here.
  [[nodiscard]] virtual std::vector<int64_t> ListsOf(std::span<const int64_t> ids) const = 0;

  // The router's vectors [lists, dimension] and biases [lists], as `lists` orders them: what a list is probed for is
  // the inner product with the query (kCosine: of unit length) plus the bias.
  struct Router {
    std::vector<int64_t> lists;
    std::vector<float> vectors;
    std::vector<float> biases;
  };
  [[nodiscard]] virtual Router router() const = 0;
  // Lists that are not named keep theirs; halves of a list inherit its own. kNotFound, nothing changed, for a list that
  // is not here (any more); kInvalidArgument for a wrong size, a NaN or a number beyond +-2^48.
  virtual Status SetRouter(const Router& router) = 0;

  // The token ids that name a vector, in place of those before. kNotFound, kInvalidArgument beyond kMostTerms.
  virtual Status SetTerms(int64_t id, std::span<const int32_t> terms) = 0;

  // As Search; vectors that a rare term of their query names are scored too, wherever they lie.
  [[nodiscard]] virtual Result<std::vector<VectorHits>> Probe(std::span<const float> queries, int32_t k,
                                                              const IdFilter& filter,
                                                              const InvertedQuery& query) const = 0;
};

std::unique_ptr<NeuralInvertedIndex> MakeNeuralInvertedIndex(const NeuralInvertedOptions& options);
// As LoadFlatIndex.
Result<std::unique_ptr<NeuralInvertedIndex>> LoadNeuralInvertedIndex(const FilePath& file);

}  // namespace everlong::index
