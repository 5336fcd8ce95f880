#include "everlong/index/part_kinds.h"

#include <cstddef>
#include <deque>

#include "built_in_parts.h"
#include "everlong/base/check.h"

namespace everlong::index {
namespace {

// By IndexPart::number. A kind never moves.
std::deque<PartKind>& Kinds() {
  static std::deque<PartKind> kinds = [] {
    std::deque<PartKind> built_in;
#define EVERLONG_ADD_KIND(Name) built_in.push_back(Name##Kind());
    EVERLONG_INDEX_PARTS(EVERLONG_ADD_KIND)
#undef EVERLONG_ADD_KIND
    return built_in;
  }();
  return kinds;
}

}  // namespace

std::vector<IndexPart> AllIndexParts() {
  std::vector<IndexPart> parts;
  for (size_t number = 0; number < Kinds().size(); ++number) parts.push_back({static_cast<uint8_t>(number)});
  return parts;
}

const PartKind& KindOf(IndexPart part) {
  EVERLONG_CHECK(part.number < Kinds().size());
  return Kinds()[part.number];
}

IndexPart RegisterPartKind(const PartKind& kind) {
  EVERLONG_CHECK(!ParseIndexPart(kind.name) && Kinds().size() < kMostIndexParts);
  Kinds().push_back(kind);
  return {static_cast<uint8_t>(Kinds().size() - 1)};
}

std::string_view NameOf(IndexPart part) { return KindOf(part).name; }

std::optional<IndexPart> ParseIndexPart(std::string_view name) {
  for (const IndexPart part : AllIndexParts()) {
    if (NameOf(part) == name) return part;
  }
  return std::nullopt;
}

}  // namespace everlong::index
