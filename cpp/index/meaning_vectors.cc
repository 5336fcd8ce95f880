#include "meaning_vectors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::index {
namespace {

constexpr auto kVectors = static_cast<size_t>(kTileVectors);

int64_t BytesOf(std::span<const uint32_t> tiles) { return static_cast<int64_t>(tiles.size_bytes()); }

}  // namespace

MeaningVectors::MeaningVectors(int32_t dimension) : dimension_(dimension) {}

void MeaningVectors::SkipTo(int32_t page) {
  while (pages() < page) pages_.push_back({});
}

MeaningVectors::Block MeaningVectors::BlockOf(std::span<const int8_t> vectors) const {
  const auto dimension = static_cast<size_t>(dimension_);
  const auto quads = static_cast<size_t>(MeaningQuadsOf(dimension_));
  const size_t count = vectors.size() / dimension;
  const auto tile_words = static_cast<size_t>(MeaningTileWords(MeaningQuadsOf(dimension_)));
  const auto sign_words = static_cast<size_t>(SignWordsOf(MeaningQuadsOf(dimension_)));
  Block block;
  block.own.resize(TileWords(static_cast<int64_t>(count)) + SignWords(static_cast<int64_t>(count)));
  block.tiles = std::span(block.own).first(TileWords(static_cast<int64_t>(count)));
  block.signs = std::span(block.own).subspan(block.tiles.size());
  for (size_t vector = 0; vector < count; ++vector) {
    const std::span<const int8_t> numbers = vectors.subspan(vector * dimension, dimension);
    uint32_t* const words = block.own.data() + vector / kVectors * tile_words + vector % kVectors;
    uint32_t* const signs =
        block.own.data() + block.tiles.size() + vector / kVectors * sign_words * kVectors + vector % kVectors;
    int64_t square = 0;
    for (size_t quad = 0; quad < quads; ++quad) {
      uint32_t word = 0;
      for (size_t i = 0; i < 4; ++i) {
        const int32_t number = quad * 4 + i < dimension ? numbers[quad * 4 + i] : 0;
        square += int64_t{number} * number;
        word |= static_cast<uint32_t>(number + 128) << (8 * i);
      }
      words[quad * kVectors] = word;
      signs[quad / 8 * kVectors] |= ((word >> 7U) & 0x01010101U) << (quad % 8);
    }
    for (size_t word = 0; square == 0 && word < sign_words; ++word) signs[word * kVectors] = 0;
    const float per_length = square > 0 ? static_cast<float>(1 / std::sqrt(static_cast<double>(square))) : 0.0F;
    words[quads * kVectors] = std::bit_cast<uint32_t>(per_length);
  }
  return block;
}

void MeaningVectors::Put(int32_t first_page, std::span<const int32_t> counts, std::span<const int8_t> vectors) {
  Place(first_page, counts, BlockOf(vectors));
}

void MeaningVectors::PutMapped(int32_t first_page, std::span<const int32_t> counts, std::span<const uint32_t> tiles,
                               std::span<const uint32_t> signs) {
  Place(first_page, counts, {tiles, signs, {}});
}

void MeaningVectors::Place(int32_t first_page, std::span<const int32_t> counts, Block block) {
  SkipTo(first_page + static_cast<int32_t>(counts.size()));
  int32_t page = first_page;
  int32_t first = 0;
  for (const int32_t count : counts) {
    pages_[page++] = {block.tiles.data(), block.signs.data(), first, first + count, block.own.empty()};
    first += count;
  }
  Remove(first_page);
  own_bytes_ += BytesOf(block.own);
  blocks_.emplace(first_page, std::move(block));
}

void MeaningVectors::Remove(int32_t first_page) {
  const auto found = blocks_.find(first_page);
  if (found == blocks_.end()) return;
  std::ranges::fill(found->second.own, 0U);
  own_bytes_ -= BytesOf(found->second.own);
  blocks_.erase(found);
}

void MeaningVectors::Forget(PageRun pages) {
  for (int32_t page = pages.first; page < std::min(pages.last, this->pages()); ++page) pages_[page] = {};
  Remove(pages.first);
}

int64_t MeaningVectors::bytes() const {
  constexpr int64_t kEntryBytes = 96;  // of the map
  return pages_.bytes() + own_bytes_ + kEntryBytes * std::ssize(blocks_);
}

}  // namespace everlong::index
