// The parts of the index by number and name, and sets of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace everlong::index {

// The kinds of parts of this library, a line each. NAME_part.cc defines its NameKind() (built_in_parts.h); that of
// MeanPool and Hnsw is block_vectors_part.cc, that of Encoder meaning_part.cc.
// clang-format off
#define EVERLONG_INDEX_PARTS(Line) \
  Line(Heads)                      \
  Line(Lexical)                    \
  Line(MeanPool)                   \
  Line(Hnsw)                       \
  Line(Embedding)                  \
  Line(Meaning)                    \
  Line(Encoder)                    \
  Line(Words)
// clang-format on

// The number of a part is its place in the table of kinds (part_kinds.h), which begins with those above. Parts
// kMeanPool and kHnsw search the same vectors: the mean of a block's un-rotated keys of the last layer. The first is
// exact, the second uses a graph. Part kEmbedding searches vectors of pages that the caller computes from their text
// with a sentence-embedding model. Part kMeaning searches several vectors a page, made from the model's hidden states
// when it read the page (meaning.h). Part kEncoder searches as many that an encoder of text makes, whichever model read
// the page.
struct IndexPart {
  uint8_t number = 0;
  bool operator==(const IndexPart&) const = default;

#define EVERLONG_DECLARE_PART(Name) static const IndexPart k##Name;
  EVERLONG_INDEX_PARTS(EVERLONG_DECLARE_PART)
#undef EVERLONG_DECLARE_PART
};

namespace numbers {
enum Number : uint8_t {
#define EVERLONG_NUMBER_PART(Name) k##Name,
  EVERLONG_INDEX_PARTS(EVERLONG_NUMBER_PART)
#undef EVERLONG_NUMBER_PART
};
}  // namespace numbers
#define EVERLONG_DEFINE_PART(Name) inline constexpr IndexPart IndexPart::k##Name{numbers::k##Name};
EVERLONG_INDEX_PARTS(EVERLONG_DEFINE_PART)
#undef EVERLONG_DEFINE_PART

// The most parts that there can be.
inline constexpr uint8_t kMostIndexParts = 32;

std::string_view NameOf(IndexPart part);  // PartKind::name
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
