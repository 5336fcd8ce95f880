#include "everlong/index/heads_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <string>

#include "best_first.h"
#include "everlong/base/parallel_for.h"
#include "everlong/index/heads_kernel.h"

namespace everlong::index {
namespace {

// Pages are scored and their statistics combined in chunks of this many, whatever the number of threads: the order of
// every floating-point sum is then fixed.
constexpr int64_t kChunkPages = 64;
// A pass keeps a maximum and a sum for every page and row; longer questions take several passes.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The distinct key heads of `heads` in order of first use.
std::vector<HeadsIndex::KeyHead> DistinctKeyHeads(const std::vector<RetrievalHead>& heads) {
  std::vector<HeadsIndex::KeyHead> distinct;
  for (const RetrievalHead& head : heads) {
    const HeadsIndex::KeyHead key{head.layer, head.kv_head};
    if (std::ranges::find(distinct, key) == distinct.end()) distinct.push_back(key);
  }
  return distinct;
}

}  // namespace

// Query rows that share a key head, in the layout of the kernel.
struct HeadsIndex::RowBlock {
  int32_t key_head = 0;
  std::vector<float> rows;         // [D][kBlockRows], times log2(e) / sqrt(D)
  float weights[kBlockRows] = {};  // 0 for rows that fill the block up
};

HeadsIndex::HeadsIndex(std::vector<RetrievalHead> heads, int32_t head_dim)
    : heads_(std::move(heads)),
      key_heads_(DistinctKeyHeads(heads_)),
      head_dim_(head_dim),
      keys_(static_cast<int32_t>(key_heads_.size()), head_dim) {
  for (const RetrievalHead& head : heads_) {
    const auto found = std::ranges::find(key_heads_, KeyHead{head.layer, head.kv_head});
    head_to_key_.push_back(static_cast<int32_t>(found - key_heads_.begin()));
  }
}

Status HeadsIndex::Add(std::span<const float> keys, int32_t tokens, int32_t sink_tokens) {
  if (tokens < 1) return InvalidArgumentError("page of " + std::to_string(tokens) + " tokens, expected at least 1");
  if (sink_tokens < 0 || sink_tokens > tokens) {
    return InvalidArgumentError("sink_tokens is " + std::to_string(sink_tokens) + ", expected 0 to " +
                                std::to_string(tokens));
  }
  const size_t expected = key_heads_.size() * static_cast<size_t>(tokens) * static_cast<size_t>(head_dim_);
  if (keys.size() != expected) {
    return InvalidArgumentError("keys of " + std::to_string(keys.size()) + " numbers, expected " +
                                std::to_string(expected));
  }
  EVERLONG_RETURN_IF_ERROR(keys_.Add(keys, tokens));
  page_sinks_.push_back(sink_tokens);
  return OkStatus();
}

Status HeadsIndex::CheckQuery(std::span<const float> q, std::span<const float> weights) const {
  const size_t expected = weights.size() * heads_.size() * static_cast<size_t>(head_dim_);
  if (q.size() != expected) {
    return InvalidArgumentError("q of " + std::to_string(q.size()) + " numbers for " + std::to_string(weights.size()) +
                                " weights, expected " + std::to_string(expected));
  }
  if (!AllFinite(q)) return InvalidArgumentError("q holds a NaN or an infinity");
  if (!AllFinite(weights)) return InvalidArgumentError("weights hold a NaN or an infinity");
  const auto negative = std::ranges::find_if(weights, [](float weight) { return weight < 0; });
  if (negative != weights.end()) {
    return InvalidArgumentError("weight is " + std::to_string(*negative) + ", expected 0 or more");
  }
  return OkStatus();
}

Status HeadsIndex::MakeRowBlocks(std::span<const float> q, std::span<const float> weights,
                                 std::vector<RowBlock>& blocks) const {
  const auto dim = static_cast<size_t>(head_dim_);
  const double scale = std::numbers::log2e / std::sqrt(static_cast<double>(head_dim_));
  for (int32_t key_head = 0; key_head < static_cast<int32_t>(key_heads_.size()); ++key_head) {
    int32_t row = kBlockRows;
    for (size_t head = 0; head < heads_.size(); ++head) {
      if (head_to_key_[head] != key_head) continue;
      for (size_t token = 0; token < weights.size(); ++token) {
        if (weights[token] == 0) continue;
        if (row == kBlockRows) {
          RowBlock& block = blocks.emplace_back();
          block.key_head = key_head;
          block.rows.assign(dim * kBlockRows, 0.0F);
          row = 0;
        }
        RowBlock& block = blocks.back();
        const float* const query = q.data() + (token * heads_.size() + head) * dim;
        double length = 0;
        for (size_t i = 0; i < dim; ++i) {
          const double element = query[i] * scale;
          length += std::abs(element);
          block.rows[i * kBlockRows + static_cast<size_t>(row)] = static_cast<float>(element);
        }
        // No partial sum of a score is larger than this, and differences of scores at most twice as large.
        if (length * keys_.largest(key_head) > std::numeric_limits<float>::max() / 4) {
          return InvalidArgumentError("q of question token " + std::to_string(token) + " overflows its scores");
        }
        block.weights[row++] = weights[token];
      }
    }
  }
  return OkStatus();
}

void HeadsIndex::AddMass(std::span<const RowBlock> blocks, std::span<const int32_t> scored,
                         std::span<float> mass) const {
  const HeadsKernel& kernel = BestHeadsKernel();
  const auto pages = static_cast<int64_t>(scored.size());
  const int64_t chunks = (pages + kChunkPages - 1) / kChunkPages;
  const auto block_rows = static_cast<int64_t>(blocks.size()) * kBlockRows;
  const int64_t rows = RoundUp(block_rows, kRowMultiple);
  // [scored pages][rows] and [chunks][rows].
  const auto maxima = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(pages * rows));
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(pages * rows));
  std::vector<float> chunk_maxima(static_cast<size_t>(chunks * rows));
  std::vector<float> chunk_sums(static_cast<size_t>(chunks * rows));
  int32_t most_tiles = 0;
  for (const int32_t page : scored) most_tiles = std::max(most_tiles, keys_.tiles(page));

  ParallelFor(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    std::vector<float> scores(static_cast<size_t>(most_tiles) * kTileTokens * kBlockRows);
    for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
      const int64_t first = chunk * kChunkPages;
      const int64_t last = std::min(first + kChunkPages, pages);
      for (int64_t at = first; at < last; ++at) {
        const int32_t page = scored[static_cast<size_t>(at)];
        float* const page_maxima = maxima.get() + at * rows;
        float* const page_sums = sums.get() + at * rows;
        for (size_t block = 0; block < blocks.size(); ++block) {
          const PageKeys keys{keys_.keys(page, blocks[block].key_head), keys_.tiles(page), head_dim_,
                              page_sinks_[static_cast<size_t>(page)], keys_.tokens(page)};
          kernel.score_page(keys, blocks[block].rows.data(), scores.data(), page_maxima + block * kBlockRows,
                            page_sums + block * kBlockRows);
        }
        std::fill(page_maxima + block_rows, page_maxima + rows, 0.0F);
        std::fill(page_sums + block_rows, page_sums + rows, 1.0F);
      }
      kernel.combine_pages(maxima.get() + first * rows, sums.get() + first * rows, last - first, rows,
                           chunk_maxima.data() + chunk * rows, chunk_sums.data() + chunk * rows);
    }
  });

  std::vector<float> maximum(static_cast<size_t>(rows));
  std::vector<float> factor(static_cast<size_t>(rows), 0.0F);  // weight / sum over the archive
  for (int64_t row = 0; row < rows; ++row) {
    float largest = chunk_maxima[static_cast<size_t>(row)];
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      largest = std::max(largest, chunk_maxima[static_cast<size_t>(chunk * rows + row)]);
    }
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const auto at = static_cast<size_t>(chunk * rows + row);
      total += chunk_sums[at] * std::exp2(static_cast<double>(chunk_maxima[at]) - largest);
    }
    maximum[static_cast<size_t>(row)] = largest;
    if (row < block_rows) {
      const float weight = blocks[static_cast<size_t>(row / kBlockRows)].weights[row % kBlockRows];
      factor[static_cast<size_t>(row)] = static_cast<float>(weight / total);
    }
  }

  ParallelFor(0, pages, kChunkPages, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      mass[static_cast<size_t>(scored[static_cast<size_t>(at)])] +=
          kernel.page_mass(maxima.get() + at * rows, sums.get() + at * rows, rows, maximum.data(), factor.data());
    }
  });
}

Result<std::vector<float>> HeadsIndex::Mass(std::span<const float> q, std::span<const float> weights,
                                            const PageFilter& filter) const {
  EVERLONG_RETURN_IF_ERROR(CheckQuery(q, weights));
  std::vector<RowBlock> blocks;
  EVERLONG_RETURN_IF_ERROR(MakeRowBlocks(q, weights, blocks));
  std::vector<int32_t> scored;
  for (int32_t page = 0; page < pages(); ++page) {
    if (filter.Allows(page) && page_sinks_[static_cast<size_t>(page)] < keys_.tokens(page)) scored.push_back(page);
  }
  std::vector<float> mass(static_cast<size_t>(pages()), 0.0F);
  if (scored.empty()) return mass;
  const int64_t bytes_a_block =
      static_cast<int64_t>(scored.size()) * kBlockRows * 2 * static_cast<int64_t>(sizeof(float));
  // An even number, so that every pass but the last fills its vectors.
  const auto blocks_a_pass = static_cast<size_t>(std::max<int64_t>(2, kWorkspaceBytes / bytes_a_block / 2 * 2));
  for (size_t first = 0; first < blocks.size(); first += blocks_a_pass) {
    const size_t count = std::min(blocks_a_pass, blocks.size() - first);
    AddMass(std::span<const RowBlock>(blocks).subspan(first, count), scored, mass);
  }
  return mass;
}

Result<std::vector<Hit>> HeadsIndex::Search(std::span<const float> q, std::span<const float> weights, int32_t k,
                                            const PageFilter& filter) const {
  if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<float> mass, Mass(q, weights, filter));
  std::vector<Hit> hits;
  for (int32_t page = 0; page < pages(); ++page) {
    if (mass[static_cast<size_t>(page)] > 0) hits.push_back({page, mass[static_cast<size_t>(page)]});
  }
  KeepBestFirst(hits, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
  return hits;
}

int64_t HeadsIndex::bytes() const {
  return keys_.bytes() + static_cast<int64_t>(page_sinks_.capacity() * sizeof(int32_t));
}

}  // namespace everlong::index
