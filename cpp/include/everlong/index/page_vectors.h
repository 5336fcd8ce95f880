// The part "embedding": vectors of pages that somebody else computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "everlong/index/part.h"

namespace everlong::index {

// Where vectors are searched: all of them, by a graph (hnsw), or by learned lists (neural_inverted_index.h).
enum class VectorSearch : uint32_t { kFlat, kHnsw, kDnii };
inline constexpr const char* kVectorSearchNames[] = {"flat", "hnsw", "dnii"};

// Whose vectors, and what they are kept in. Compared by cosine.
struct PageVectorOptions {
  std::string encoder;    // vectors of another one are never searched together with these
  int32_t dimension = 0;  // >= 1
  VectorSearch search = VectorSearch::kFlat;
  bool operator==(const PageVectorOptions&) const = default;
};
// Vectors of one page at most, e.g. one for every 32 of its tokens.
inline constexpr int32_t kMaxPageVectors = 16;
// Ids of blocks that may have vectors.
inline constexpr int64_t kLargestVectorBlock = (int64_t{1} << 35) - 1;

// Its input is Query::Input("page_query"): [dimension] fp32.
std::unique_ptr<Part> MakeEmbeddingPart(const PartContext& context, const PageVectorOptions& options);

}  // namespace everlong::index
