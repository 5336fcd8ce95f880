// The part "hnsw": vectors of blocks, approximate, by a graph.
#include <memory>

#include "block_vectors_part.h"
#include "built_in_parts.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {
namespace {

Result<std::unique_ptr<Part>> Make(const PartContext& context) {
  return std::unique_ptr<Part>(std::make_unique<BlockVectorsPart>(
      context, MakeHnswIndex({.dimension = BlockVectorsPart::Dimension(context)}), &LoadHnswIndex));
}

}  // namespace

PartKind HnswKind() {
  PartKind kind;
  kind.name = "hnsw";
  kind.input = "mean_query";
  kind.missing = "mean_query is given, expected none: a memory of text alone has no keys";
  kind.made = PartKind::Made::kWhenAsked;
  kind.needs_keys = true;
  kind.make = &Make;
  return kind;
}

}  // namespace everlong::index
