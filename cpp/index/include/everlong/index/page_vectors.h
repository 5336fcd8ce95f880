// The part "embedding": it searches vectors of pages that the caller computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "everlong/index/part.h"

namespace everlong::index {

// How vectors are searched: all of them, by a graph (hnsw), or by learned lists (neural_inverted_index.h).
enum class VectorSearch : uint32_t { kFlat, kHnsw, kDnii };
inline constexpr const char* kVectorSearchNames[] = {"flat", "hnsw", "dnii"};

// The source of the vectors, and how they are searched. They are compared by cosine.
struct PageVectorOptions {
  std::string encoder;    // vectors of different encoders are never searched together
  int32_t dimension = 0;  // >= 1
  VectorSearch search = VectorSearch::kFlat;
  bool operator==(const PageVectorOptions&) const = default;
};
// The most vectors of one page, e.g. one for every 32 of its tokens.
inline constexpr int32_t kMaxPageVectors = 16;
// The largest id of a block that may have vectors.
inline constexpr int64_t kLargestVectorBlock = (int64_t{1} << 35) - 1;

// Make the part. Its input is Query::Input("page_query"): [dimension] fp32.
std::unique_ptr<Part> MakeEmbeddingPart(const PartContext& context, const PageVectorOptions& options);

}  // namespace everlong::index
