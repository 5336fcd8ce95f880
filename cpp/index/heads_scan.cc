#include "heads_scan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "everlong/base/cache_lines.h"
#include "everlong/base/parallel_for.h"

namespace everlong::index {
namespace {

// Pages are scored and summed in chunks of this many, for any number of threads, to fix the order of all sums.
constexpr int32_t kChunkPages = 64;
int64_t ChunksOf(int32_t pages) { return (int64_t{pages} + kChunkPages - 1) / kChunkPages; }
// Return the positions of a chunk's pages, of `count` in all.
PageRun ChunkAt(int64_t chunk, int32_t count) {
  const auto first = static_cast<int32_t>(chunk * kChunkPages);
  return {first, std::min(first + std::min(kChunkPages, count - first), count)};
}
// A score may lie so far above its reference. 2^80, added up over any archive, is far from the end of fp32.
constexpr double kMostAbove = 80;
// So no sum over a page's tokens is larger, unless its keys are damaged: they are not checked when a file is opened.
constexpr float kMostSum = 0x1p112F;
bool IsPossible(float sum) { return sum >= 0 && sum <= kMostSum; }

// Scores pages for one thread. Keys in bytes are expanded once for all blocks of a key head in a row.
class PageScorer {
 public:
  explicit PageScorer(const ScannedKeys& keys) : keys_(keys) {}

  // maxima [kBlockRows]
  void Maxima(int32_t page, const RowBlock& block, float* maxima) {
    if (keys_.coarse != nullptr) {
      coarse_.page_maxima(Codes(page, block.key_head), block.coarse_rows, maxima);
    } else {
      exact_.page_maxima(Read(page, block.key_head), block.rows, maxima);
    }
  }

  // sums [kBlockRows], of what a pass computes (ScannedKeys), relative to `references` [kBlockRows].
  void Sums(int32_t page, const RowBlock& block, const float* references, float* sums) {
    if (keys_.coarse != nullptr) {
      float maxima[kBlockRows];
      Maxima(page, block, maxima);
      exact_.powers(maxima, references, sums);
    } else {
      exact_.page_sums(Read(page, block.key_head), block.rows, references, sums);
    }
  }

 private:
  [[nodiscard]] CoarsePage Codes(int32_t page, int32_t key_head) const {
    const int32_t tokens = keys_.tiles.tokens(page);
    const CoarseKeys& coarse = *keys_.coarse;
    return {coarse.tiles(page, tokens, key_head), coarse.token_words(), keys_.sinks[page], tokens};
  }

  PageKeys Read(int32_t page, int32_t key_head) {
    const KeyTiles& tiles = keys_.tiles;
    const uint32_t* words = tiles.keys(page, key_head);
    if (tiles.storage() != KeyStorage::kBf16) {
      if (page != page_ || key_head != key_head_) Expand(page, key_head);
      words = expanded_.data();
    }
    return {words, PairsOf(keys_.dim), keys_.sinks[page], tiles.tokens(page)};
  }

  void Expand(int32_t page, int32_t key_head) {
    const KeyTiles& tiles = keys_.tiles;
    const int32_t pairs = PairsOf(keys_.dim);
    const auto words = static_cast<size_t>(tiles.tiles(page) * pairs) * kTileTokens;
    if (expanded_.size() < words) expanded_.resize(words);
    ExpandBytes(tiles.storage(), {tiles.scales(page, key_head), tiles.keys(page, key_head), tiles.tiles(page), pairs},
                expanded_.data());
    page_ = page;
    key_head_ = key_head;
  }

  const ScannedKeys& keys_;
  const HeadsKernel& exact_ = BestHeadsKernel();
  const CoarseKernel& coarse_ = BestCoarseKernel();
  CacheLineVector<uint32_t> expanded_;  // of page_ and key_head_
  int32_t page_ = -1;
  int32_t key_head_ = -1;
};

// The chunks whose keys are read from a file meanwhile, on each thread.
constexpr int64_t kChunksAhead = 8;

// Call body(scorer, chunk) for the chunks of the first `count` pages, with a PageScorer for each thread.
template <class Body>
void ForEachChunk(const ScannedKeys& keys, const PagePositions& pages, int32_t count, const Body& body) {
  ParallelFor(0, ChunksOf(count), 1, [&](int64_t first_chunk, int64_t last_chunk) {
    // Codes are read by every search, and in a row.
    const auto read_soon = [&](int64_t chunk) {
      if (keys.coarse != nullptr || chunk >= last_chunk) return;
      SoonReads soon;
      const auto [first, last] = ChunkAt(chunk, count);
      pages.ForEach(first, last, [&](int32_t /*position*/, int32_t page) { keys.tiles.ReadSoon(page, soon); });
    };
    for (int64_t ahead = 0; ahead < kChunksAhead; ++ahead) read_soon(first_chunk + ahead);
    PageScorer scorer(keys);
    for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
      read_soon(chunk + kChunksAhead);
      body(scorer, chunk);
    }
  });
}

// Return what no score of a row is above.
double BoundOf(const ScannedKeys& keys, const RowBlock& block, size_t row) {
  return keys.coarse == nullptr ? block.bounds[row] : block.coarse_rows.bound(static_cast<int32_t>(row));
}

// Return every row's largest score over the first `count` pages.
std::vector<float> Maxima(const ScannedKeys& keys, std::span<const RowBlock> blocks, const PagePositions& pages,
                          int32_t count) {
  const size_t rows = blocks.size() * kBlockRows;
  const int64_t chunks = ChunksOf(count);
  std::vector<float> of_chunks(static_cast<size_t>(chunks) * rows, -std::numeric_limits<float>::infinity());
  ForEachChunk(keys, pages, count, [&](PageScorer& scorer, int64_t chunk) {
    float maxima[kBlockRows];
    float sums[kBlockRows];
    float* const of_chunk = of_chunks.data() + static_cast<size_t>(chunk) * rows;
    const auto [first, last] = ChunkAt(chunk, count);
    pages.ForEach(first, last, [&](int32_t /*position*/, int32_t page) {
      for (size_t block = 0; block < blocks.size(); ++block) {
        scorer.Maxima(page, blocks[block], maxima);
        // A page whose sum is impossible counts nowhere: all others would be too small beside its largest score.
        // Codes of any bits are numbers.
        const bool is_exact = keys.coarse == nullptr;
        if (is_exact) scorer.Sums(page, blocks[block], maxima, sums);
        float* const out = of_chunk + block * kBlockRows;
        for (size_t row = 0; row < kBlockRows; ++row) {
          const bool possible =
              maxima[row] <= BoundOf(keys, blocks[block], row) && (!is_exact || IsPossible(sums[row]));
          if (possible) out[row] = std::max(out[row], maxima[row]);
        }
      }
    });
  });
  std::vector<float> largest(of_chunks.begin(), of_chunks.begin() + static_cast<std::ptrdiff_t>(rows));
  for (size_t at = rows; at < of_chunks.size(); ++at) largest[at % rows] = std::max(largest[at % rows], of_chunks[at]);
  return largest;
}

}  // namespace

std::vector<float> ReferencesOf(const ScannedKeys& keys, std::span<const RowBlock> blocks, const PagePositions& pages) {
  // Begin with a real score. The largest is no smaller, so it is not lost, and by its bound it is seldom too far above.
  std::vector<float> references = Maxima(keys, blocks, pages, std::min(pages.size(), kChunkPages));
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (size_t row = 0; row < kBlockRows; ++row) {
      const double bound = BoundOf(keys, blocks[block], row);
      if (bound - references[block * kBlockRows + row] > kMostAbove) {
        return Maxima(keys, blocks, pages, pages.size());
      }
    }
  }
  return references;
}

HeadsScan::HeadsScan(const ScannedKeys& keys, std::span<const RowBlock> blocks, const PagePositions& pages,
                     std::span<const float> references)
    : blocks_(blocks), pages_(pages.size()) {
  const int64_t chunks = ChunksOf(pages_);
  const size_t rows = blocks.size() * kBlockRows;
  sums_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(pages_) * rows);
  std::vector<float> chunk_sums(static_cast<size_t>(chunks) * rows, 0.0F);
  ForEachChunk(keys, pages, pages_, [&](PageScorer& scorer, int64_t chunk) {
    float* const of_chunk = chunk_sums.data() + static_cast<size_t>(chunk) * rows;
    const auto [first, last] = ChunkAt(chunk, pages_);
    pages.ForEach(first, last, [&](int32_t position, int32_t page) {
      float* const of_page = sums_.get() + static_cast<size_t>(position) * rows;
      for (size_t block = 0; block < blocks.size(); ++block) {
        scorer.Sums(page, blocks[block], references.data() + block * kBlockRows, of_page + block * kBlockRows);
      }
      for (size_t row = 0; row < rows; ++row) {
        if (!IsPossible(of_page[row])) of_page[row] = 0;
        of_chunk[row] += of_page[row];
      }
    });
  });
  totals_.resize(rows);
  for (size_t at = 0; at < chunk_sums.size(); ++at) totals_[at % rows] += chunk_sums[at];
}

void HeadsScan::AddMass(std::span<const double> shares, std::span<float> mass) const {
  const size_t rows = totals_.size();
  std::vector<float> factors(rows);  // weight * share / total
  for (size_t row = 0; row < rows; ++row) {
    const double weight = blocks_[row / kBlockRows].weights[row % kBlockRows] * shares[row];
    const bool counts = weight != 0 && totals_[row] > 0;  // 0 where every page is damaged
    factors[row] = counts ? static_cast<float>(weight / totals_[row]) : 0.0F;
  }
  ParallelFor(0, pages_, kChunkPages, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      const float* const of_page = sums_.get() + static_cast<size_t>(at) * rows;
      // Use as many sums as there are rows in a block, so that they are vectors.
      float of_rows[kBlockRows] = {};
      for (size_t block = 0; block < rows; block += kBlockRows) {
        for (size_t row = 0; row < kBlockRows; ++row) of_rows[row] += of_page[block + row] * factors[block + row];
      }
      mass[static_cast<size_t>(at)] += std::accumulate(of_rows, of_rows + kBlockRows, 0.0F);
    }
  });
}

}  // namespace everlong::index
