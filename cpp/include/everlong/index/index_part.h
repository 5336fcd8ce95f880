// The parts of the index by number and name: what a search asks, and what named a page.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace everlong::index {

// The place of a part in the table of kinds (part_kinds.h). kMeanPool and kHnsw are over the same vectors, the mean of
// a block's un-rotated keys of the last layer (the designs' MVP, 3.1.2): the one exact, the other by a graph.
// kEmbedding is over vectors of pages that the caller computes, by a sentence-embedding model over their text; kMeaning
// over several vectors a page, made of the states that the model had while it read (meaning.h).
struct IndexPart {
  uint8_t number = 0;
  bool operator==(const IndexPart&) const = default;

  static const IndexPart kHeads;
  static const IndexPart kLexical;
  static const IndexPart kMeanPool;
  static const IndexPart kHnsw;
  static const IndexPart kEmbedding;
  static const IndexPart kMeaning;
};
inline constexpr IndexPart IndexPart::kHeads{0};
inline constexpr IndexPart IndexPart::kLexical{1};
inline constexpr IndexPart IndexPart::kMeanPool{2};
inline constexpr IndexPart IndexPart::kHnsw{3};
inline constexpr IndexPart IndexPart::kEmbedding{4};
inline constexpr IndexPart IndexPart::kMeaning{5};

// So many parts there may be.
inline constexpr uint8_t kMostIndexParts = 32;

std::string_view NameOf(IndexPart part);  // "heads", "lexical", "mean_pool", "hnsw", "embedding", "meaning"
std::optional<IndexPart> ParseIndexPart(std::string_view name);

// Some of them.
class IndexParts {
 public:
  constexpr IndexParts() = default;
  constexpr IndexParts(std::initializer_list<IndexPart> parts) {
    for (const IndexPart part : parts) bits_ |= BitOf(part);
  }

  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr bool Has(IndexPart part) const { return (bits_ & BitOf(part)) != 0; }
  constexpr IndexParts& operator|=(const IndexParts& others) {
    bits_ |= others.bits_;
    return *this;
  }
  bool operator==(const IndexParts&) const = default;

 private:
  static constexpr uint32_t BitOf(IndexPart part) { return 1U << part.number; }

  uint32_t bits_ = 0;
};

}  // namespace everlong::index
