#include "everlong/index/index_part.h"

#include <algorithm>
#include <iterator>

namespace everlong::index {

std::string_view NameOf(IndexPart part) {
  switch (part) {
    case IndexPart::kHeads:
      return "heads";
    case IndexPart::kLexical:
      return "lexical";
    case IndexPart::kMeanPool:
      return "mean_pool";
    case IndexPart::kHnsw:
      return "hnsw";
    case IndexPart::kEmbedding:
      return "embedding";
  }
  return "";
}

std::optional<IndexPart> ParseIndexPart(std::string_view name) {
  const auto* const found = std::ranges::find_if(kIndexParts, [name](IndexPart part) { return NameOf(part) == name; });
  return found == std::end(kIndexParts) ? std::nullopt : std::optional(*found);
}

}  // namespace everlong::index
