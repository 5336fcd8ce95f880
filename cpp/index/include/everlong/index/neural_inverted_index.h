// The index "dnii": an inverted index over vectors with learned lists and a learned router from a query to its lists.
//
// Lists grow with the vectors. A list that is too full is split in two, and members of its neighbours move to a half
// that is nearer to them. A list that removals left too small is dissolved. The Gardener does the same; so does SPFresh
// (Xu et al. 2023, arXiv 2410.14452). A query probes the lists that a router scores highest. Without a trained router
// these are the lists with the nearest centroids. A trained router has a vector and a bias for each list (Vecchiato et
// al. 2024, arXiv 2404.11731). A list keeps each vector's difference from its centroid in int8. The best candidates are
// scored again from fp32. Token ids may name vectors too: HI^2 (Zhang et al. 2022, arXiv 2210.05521).
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
  int32_t list_vectors = 256;    // a list with twice as many is split, one with less than an eighth is dissolved
  int32_t probes = 32;           // lists that a query looks into; more find more
  int32_t rescored = 64;         // candidates scored again from fp32; at least four for each wanted hit
  int32_t exact_below = 10'000;  // so many allowed vectors, or fewer, are all scored
};

// The parts of a query besides its vector.
struct InvertedQuery {
  int32_t probes = 0;  // 0: as in the options
  // Token ids for each query; empty: no query has any.
  // NOLINTNEXTLINE(readability-redundant-member-init): may be left out
  std::vector<std::vector<int32_t>> terms{};
};

// Thread-safe as every VectorIndex. The calls below count as writers, except the const ones.
class NeuralInvertedIndex : public VectorIndex {
 public:
  // The centres of the lists.
  struct Lists {
    std::vector<int64_t> ids;      // ascending; a list that is split becomes two new ones
    std::vector<float> centroids;  // [lists, dimension]
    std::vector<int64_t> sizes;    // vectors in each list
  };
  [[nodiscard]] virtual Lists lists() const = 0;
  // Return the list of each vector; -1 for an unknown vector.
  [[nodiscard]] virtual std::vector<int64_t> ListsOf(std::span<const int64_t> ids) const = 0;

  // The router's vectors [lists, dimension] and biases [lists], in the order of `lists`. A list's score is the inner
  // product of its vector and the query, plus its bias. With kCosine the query has unit length.
  struct Router {
    std::vector<int64_t> lists;
    std::vector<float> vectors;
    std::vector<float> biases;
  };
  [[nodiscard]] virtual Router router() const = 0;
  // Set the vectors of some lists. The others keep theirs, and the halves of a split list inherit its own. kNotFound
  // for an unknown list; kInvalidArgument for a wrong size, a NaN or a number beyond +-2^48. Nothing has changed then.
  virtual Status SetRouter(const Router& router) = 0;

  // Replace the token ids that name a vector. kNotFound; kInvalidArgument for more than kMostTerms.
  virtual Status SetTerms(int64_t id, std::span<const int32_t> terms) = 0;

  // Search as Search does, and also score the vectors that a rare term of their query names, whatever their list.
  [[nodiscard]] virtual Result<std::vector<VectorHits>> Probe(std::span<const float> queries, int32_t k,
                                                              const IdFilter& filter,
                                                              const InvertedQuery& query) const = 0;
};

std::unique_ptr<NeuralInvertedIndex> MakeNeuralInvertedIndex(const NeuralInvertedOptions& options);
// Load what Save wrote, with the errors of LoadFlatIndex.
Result<std::unique_ptr<NeuralInvertedIndex>> LoadNeuralInvertedIndex(const FilePath& file);

}  // namespace everlong::index
