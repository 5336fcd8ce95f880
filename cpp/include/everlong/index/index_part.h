// The parts of the index: what a search asks, and what named a page.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace everlong::index {

// kMeanPool and kHnsw are over the same vectors, the mean of a block's un-rotated keys of the last layer (the designs'
// MVP, 3.1.2): the one exact, the other by a graph. kEmbedding is over vectors of pages that the caller computes, by a
// sentence-embedding model over their text.
enum class IndexPart : uint8_t { kHeads, kLexical, kMeanPool, kHnsw, kEmbedding };
inline constexpr IndexPart kIndexParts[] = {IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeanPool,
                                            IndexPart::kHnsw, IndexPart::kEmbedding};

std::string_view NameOf(IndexPart part);  // "heads", "lexical", "mean_pool", "hnsw", "embedding"
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
  static constexpr uint32_t BitOf(IndexPart part) { return 1U << static_cast<uint32_t>(part); }

  uint32_t bits_ = 0;
};

}  // namespace everlong::index
