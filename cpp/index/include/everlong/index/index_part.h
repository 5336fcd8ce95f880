// The parts of the index by number and name, and sets of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace everlong::index {

// The number of a part is its place in the table of kinds (part_kinds.h). Parts kMeanPool and kHnsw search the same
// vectors: the mean of a block's un-rotated keys of the last layer. The first is exact, the second uses a graph. Part
// kEmbedding searches vectors of pages that the caller computes from their text with a sentence-embedding model. Part
// kMeaning searches several vectors a page, made from the model's hidden states when it read the page (meaning.h). Part
// kEncoder searches as many that an encoder of text makes, whichever model read the page.
struct IndexPart {
  uint8_t number = 0;
  bool operator==(const IndexPart&) const = default;

  static const IndexPart kHeads;
  static const IndexPart kLexical;
  static const IndexPart kMeanPool;
  static const IndexPart kHnsw;
  static const IndexPart kEmbedding;
  static const IndexPart kMeaning;
  static const IndexPart kEncoder;
};
inline constexpr IndexPart IndexPart::kHeads{0};
inline constexpr IndexPart IndexPart::kLexical{1};
inline constexpr IndexPart IndexPart::kMeanPool{2};
inline constexpr IndexPart IndexPart::kHnsw{3};
inline constexpr IndexPart IndexPart::kEmbedding{4};
inline constexpr IndexPart IndexPart::kMeaning{5};
inline constexpr IndexPart IndexPart::kEncoder{6};

// The most parts that there can be.
inline constexpr uint8_t kMostIndexParts = 32;

std::string_view NameOf(IndexPart part);  // "heads", "lexical", "mean_pool", "hnsw", "embedding", "meaning", "encoder"
std::optional<IndexPart> ParseIndexPart(std::string_view name);

// A set of parts. A value type, thread-safe as one.
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
