#include "everlong/index/heads_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <string>
#include <string_view>

#include "best_first.h"
#include "everlong/base/parallel_for.h"
#include "everlong/index/index_file.h"

namespace everlong::index {
namespace {

// Pages are scored and their statistics combined in chunks of this many, whatever the number of threads: the order of
// every floating-point sum is then fixed.
constexpr int64_t kChunkPages = 64;
// A pass keeps a sum for every page and row; longer questions take several passes.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// So far above its reference a score may lie: 2^80, added up over any archive, is far from the end of fp32.
constexpr double kMostAbove = 80;

constexpr std::string_view kMagic = "everlong heads 1\n";
struct Header {
  int32_t head_dim = 0;
  int32_t heads = 0;
  int64_t pages = 0;
};
struct PageHeader {
  int32_t tokens = 0;
  int32_t sinks = 0;
};

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

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
  QueryRows rows;                  // times log2(e) / sqrt(D)
  float weights[kBlockRows] = {};  // 0 for rows that fill the block up
  double bounds[kBlockRows] = {};  // no score of a row is larger
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
  std::vector<float> scaled(dim);
  for (int32_t key_head = 0; key_head < static_cast<int32_t>(key_heads_.size()); ++key_head) {
    int32_t row = kBlockRows;
    for (size_t head = 0; head < heads_.size(); ++head) {
      if (head_to_key_[head] != key_head) continue;
      for (size_t token = 0; token < weights.size(); ++token) {
        if (weights[token] == 0) continue;
        if (row == kBlockRows) {
          blocks.push_back({key_head, QueryRows(head_dim_)});
          row = 0;
        }
        RowBlock& block = blocks.back();
        const float* const query = q.data() + (token * heads_.size() + head) * dim;
        double square = 0;
        for (size_t i = 0; i < dim; ++i) {
          const double element = query[i] * scale;
          square += element * element;
          scaled[i] = static_cast<float>(element);
        }
        // By Cauchy and Schwarz no partial sum of a score is larger; rounding to bf16 adds a 256th.
        const double bound = std::sqrt(square) * keys_.longest(key_head) * 1.01;
        if (bound > std::numeric_limits<float>::max() / 4) {
          return InvalidArgumentError("q of question token " + std::to_string(token) + " overflows its scores");
        }
        block.rows.Set(row, scaled);
        block.bounds[row] = bound;
        block.weights[row++] = weights[token];
      }
    }
  }
  return OkStatus();
}

PageKeys HeadsIndex::KeysOf(int32_t page, int32_t key_head) const {
  return {keys_.keys(page, key_head), keys_.tiles(page), PairsOf(head_dim_), page_sinks_[static_cast<size_t>(page)],
          keys_.tokens(page)};
}

std::vector<float> HeadsIndex::Maxima(std::span<const RowBlock> blocks, std::span<const int32_t> pages) const {
  const HeadsKernel& kernel = BestHeadsKernel();
  const size_t rows = blocks.size() * kBlockRows;
  const auto count = std::ssize(pages);
  const int64_t chunks = (count + kChunkPages - 1) / kChunkPages;
  std::vector<float> of_chunks(static_cast<size_t>(chunks) * rows, -std::numeric_limits<float>::infinity());
  ParallelFor(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    float maxima[kBlockRows];
    for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
      float* const of_chunk = of_chunks.data() + static_cast<size_t>(chunk) * rows;
      for (int64_t at = chunk * kChunkPages; at < std::min((chunk + 1) * kChunkPages, count); ++at) {
        for (size_t block = 0; block < blocks.size(); ++block) {
          kernel.page_maxima(KeysOf(pages[static_cast<size_t>(at)], blocks[block].key_head), blocks[block].rows,
                             maxima);
          float* const out = of_chunk + block * kBlockRows;
          for (size_t row = 0; row < kBlockRows; ++row) out[row] = std::max(out[row], maxima[row]);
        }
      }
    }
  });
  std::vector<float> largest(of_chunks.begin(), of_chunks.begin() + static_cast<std::ptrdiff_t>(rows));
  for (size_t at = rows; at < of_chunks.size(); ++at) largest[at % rows] = std::max(largest[at % rows], of_chunks[at]);
  return largest;
}

std::vector<float> HeadsIndex::References(std::span<const RowBlock> blocks, std::span<const int32_t> scored) const {
  // A score that there is: the largest is no smaller, so it is not lost, and by its bound seldom too far above.
  std::vector<float> references = Maxima(blocks, scored.first(std::min<size_t>(scored.size(), kChunkPages)));
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (size_t row = 0; row < kBlockRows; ++row) {
      if (blocks[block].bounds[row] - references[block * kBlockRows + row] > kMostAbove) return Maxima(blocks, scored);
    }
  }
  return references;
}

void HeadsIndex::AddMass(std::span<const RowBlock> blocks, std::span<const int32_t> scored,
                         std::span<float> mass) const {
  const HeadsKernel& kernel = BestHeadsKernel();
  const auto pages = std::ssize(scored);
  const int64_t chunks = (pages + kChunkPages - 1) / kChunkPages;
  const size_t rows = blocks.size() * kBlockRows;
  const std::vector<float> references = References(blocks, scored);
  // [scored pages][rows] and [chunks][rows].
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(pages) * rows);
  std::vector<float> chunk_sums(static_cast<size_t>(chunks) * rows, 0.0F);
  ParallelFor(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
      float* const of_chunk = chunk_sums.data() + static_cast<size_t>(chunk) * rows;
      for (int64_t at = chunk * kChunkPages; at < std::min((chunk + 1) * kChunkPages, pages); ++at) {
        const int32_t page = scored[static_cast<size_t>(at)];
        float* const of_page = sums.get() + static_cast<size_t>(at) * rows;
        for (size_t block = 0; block < blocks.size(); ++block) {
          kernel.page_sums(KeysOf(page, blocks[block].key_head), blocks[block].rows,
                           references.data() + block * kBlockRows, of_page + block * kBlockRows);
        }
        for (size_t row = 0; row < rows; ++row) of_chunk[row] += of_page[row];
      }
    }
  });

  std::vector<float> factors(rows);  // weight / sum over the archive
  for (size_t row = 0; row < rows; ++row) {
    double total = 0;
    for (size_t at = row; at < chunk_sums.size(); at += rows) total += chunk_sums[at];
    factors[row] = static_cast<float>(blocks[row / kBlockRows].weights[row % kBlockRows] / total);
  }
  ParallelFor(0, pages, kChunkPages, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      const float* const of_page = sums.get() + static_cast<size_t>(at) * rows;
      // As many sums as there are rows in a block, so that they are vectors.
      float shares[kBlockRows] = {};
      for (size_t block = 0; block < rows; block += kBlockRows) {
        for (size_t row = 0; row < kBlockRows; ++row) shares[row] += of_page[block + row] * factors[block + row];
      }
      mass[static_cast<size_t>(scored[static_cast<size_t>(at)])] += std::accumulate(shares, shares + kBlockRows, 0.0F);
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
  const int64_t bytes_a_block = static_cast<int64_t>(scored.size()) * kBlockRows * static_cast<int64_t>(sizeof(float));
  const auto blocks_a_pass = static_cast<size_t>(std::max<int64_t>(1, kWorkspaceBytes / bytes_a_block));
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

Status HeadsIndex::Save(const std::filesystem::path& file, std::span<const int32_t> kept) const {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
  writer.WriteValue(Header{head_dim_, static_cast<int32_t>(heads_.size()), std::ssize(kept)});
  writer.WriteAll(std::span(heads_));
  writer.WriteAll(keys_.longest());
  for (const int32_t page : kept)
    writer.WriteValue(PageHeader{keys_.tokens(page), page_sinks_[static_cast<size_t>(page)]});
  for (const int32_t page : kept) writer.WriteAll(keys_.words(page));
  return writer.Commit();
}

Result<HeadsIndex> HeadsIndex::Load(const std::filesystem::path& file, std::vector<RetrievalHead> heads,
                                    int32_t head_dim, std::span<const uint8_t> kept) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
  const auto corrupt = [&file](const char* what) { return CorruptError(Quoted(file) + ": " + what); };
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.head_dim != head_dim || header.heads != std::ssize(heads)) return corrupt("of other heads");
  if (header.pages != std::ssize(kept)) return corrupt("of other pages");
  std::vector<RetrievalHead> saved(heads.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(saved)));
  if (saved != heads) return corrupt("of other heads");
  HeadsIndex index(std::move(heads), head_dim);
  std::vector<double> longest(index.key_heads_.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(longest)));
  if (!std::ranges::all_of(longest, [](double length) { return length >= 0; })) return corrupt("a key is NaN");
  if (kept.size() > reader.left() / sizeof(PageHeader)) return reader.Truncated();
  std::vector<PageHeader> pages(kept.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(pages)));
  std::vector<uint32_t> words;
  for (size_t page = 0; page < pages.size(); ++page) {
    const auto [tokens, sinks] = pages[page];
    if (tokens < 1 || sinks < 0 || sinks > tokens) return corrupt("a page out of range");
    const size_t count = index.keys_.PageWords(tokens);
    if (count > reader.left() / sizeof(uint32_t)) return reader.Truncated();
    words.resize(count);
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(words)));
    if (kept[page] == 0) continue;
    index.keys_.AddWords(words, tokens);
    index.page_sinks_.push_back(sinks);
  }
  if (reader.left() != 0) return corrupt("more than it says");
  index.keys_.SetLongest(longest);
  return index;
}

int64_t HeadsIndex::bytes() const {
  return keys_.bytes() + static_cast<int64_t>(page_sinks_.capacity() * sizeof(int32_t));
}

}  // namespace everlong::index
