#include "meaning_vectors.h"

#include <bit>
#include <cmath>
#include <utility>

namespace everlong::index {
namespace {

constexpr auto kVectors = static_cast<size_t>(kTileVectors);

template <class Tiles>
int64_t BytesOf(const Tiles& tiles) {
  return static_cast<int64_t>(tiles.size() * sizeof(uint32_t));
}

}  // namespace

MeaningVectors::MeaningVectors(int32_t dimension) : dimension_(dimension) {}

void MeaningVectors::SkipTo(int32_t page) {
  while (pages() < page) pages_.push_back({});
}

MeaningVectors::Buffer MeaningVectors::TilesOf(std::span<const int8_t> vectors) const {
  const auto dimension = static_cast<size_t>(dimension_);
  const auto quads = static_cast<size_t>(MeaningQuadsOf(dimension_));
  const size_t count = vectors.size() / dimension;
  const auto tile_words = static_cast<size_t>(MeaningTileWords(MeaningQuadsOf(dimension_)));
  Buffer tiles((count + kVectors - 1) / kVectors * tile_words);
  for (size_t vector = 0; vector < count; ++vector) {
    const std::span<const int8_t> numbers = vectors.subspan(vector * dimension, dimension);
    uint32_t* const words = tiles.data() + vector / kVectors * tile_words + vector % kVectors;
    int64_t square = 0;
    for (size_t quad = 0; quad < quads; ++quad) {
      uint32_t word = 0;
      for (size_t i = 0; i < 4; ++i) {
        const int32_t number = quad * 4 + i < dimension ? numbers[quad * 4 + i] : 0;
        square += int64_t{number} * number;
        word |= static_cast<uint32_t>(number + 128) << (8 * i);
      }
      words[quad * kVectors] = word;
    }
    const float per_length = square > 0 ? static_cast<float>(1 / std::sqrt(static_cast<double>(square))) : 0.0F;
    words[quads * kVectors] = std::bit_cast<uint32_t>(per_length);
  }
  return tiles;
}

void MeaningVectors::Add(std::span<const int32_t> counts, std::span<const int8_t> vectors) {
  Buffer& tiles = blocks_[pages()];
  tiles = TilesOf(vectors);
  block_bytes_ += BytesOf(tiles);
  int32_t first = 0;
  for (const int32_t count : counts) {
    pages_.push_back({tiles.data(), first, first + count});
    first += count;
  }
}

void MeaningVectors::Put(int32_t first_page, std::span<const int32_t> counts, std::span<const int8_t> vectors) {
  Buffer made = TilesOf(vectors);
  Buffer& tiles = blocks_[first_page];
  block_bytes_ += BytesOf(made) - BytesOf(tiles);
  std::swap(tiles, made);
  int32_t first = 0;
  for (const int32_t count : counts) {
    pages_[first_page++] = {tiles.data(), first, first + count};
    first += count;
  }
}

void MeaningVectors::Forget(PageRun pages) {
  for (int32_t page = pages.first; page < std::min(pages.last, this->pages()); ++page) pages_[page] = {};
  const auto found = blocks_.find(pages.first);
  if (found == blocks_.end()) return;
  block_bytes_ -= BytesOf(found->second);
  blocks_.erase(found);
}

int64_t MeaningVectors::bytes() const {
  constexpr int64_t kEntryBytes = 64;  // of the map
  return pages_.bytes() + block_bytes_ + kEntryBytes * std::ssize(blocks_);
}

}  // namespace everlong::index
