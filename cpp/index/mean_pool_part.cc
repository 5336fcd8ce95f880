// The part "mean_pool": vectors of blocks, exact.
#include <memory>

#include "block_vectors_part.h"
#include "built_in_parts.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {
namespace {

Result<std::unique_ptr<Part>> Make(const PartContext& context) {
  return std::unique_ptr<Part>(std::make_unique<BlockVectorsPart>(
      context, MakeFlatIndex({.dimension = BlockVectorsPart::Dimension(context)}), &LoadFlatIndex));
}

}  // namespace

PartKind MeanPoolKind() {
  PartKind kind;
  kind.name = "mean_pool";
  kind.input = "mean_query";
  kind.missing = "mean_query is given, expected none: a memory of text alone has no keys";
  kind.made = PartKind::Made::kWhenAsked;
  kind.needs_keys = true;
  kind.make = &Make;
  return kind;
}

}  // namespace everlong::index
