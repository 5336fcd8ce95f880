// What the threads of a heads scan do. ScorePages: for each page and block of rows as many threads as a tile has tokens
// score one token of every tile each, then join what they have of each row's softmax. FactorRow: a block of threads
// sums up a row over all pages. MassOfPage: one thread a page. Host code compiles it too and runs the threads one by
// one.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "elements.h"
#include "everlong/index/heads_job.h"

namespace everlong::hip {

inline constexpr int32_t kPageLanes = index::kTileTokens;
inline constexpr int32_t kQueryVectors = index::kBlockRows / kVectorWidth<Float32Element>;
static_assert(index::kBlockRows % kVectorWidth<Float32Element> == 0);

// Below every score, and no infinity: the difference of two such is 0.
inline constexpr float kNoScore = -0x1.FFFFFEp127F;

// 2^x for x <= 0, and nothing below 2^-126: what a score so far under the largest counts for on the CPU too.
EVERLONG_HD inline float PowerOfTwo(float x) { return x < -126.0F ? 0.0F : exp2f(x); }

// A row's share grows by the score of a token.
EVERLONG_HD inline void AddScore(index::PageShare& share, float score) {
  const bool above = score > share.largest;
  const float power = PowerOfTwo(above ? share.largest - score : score - share.largest);
  share.sum = above ? share.sum * power + 1.0F : share.sum + power;
  share.largest = above ? score : share.largest;
}

// (page, block of rows), the block fastest: blocks that read the same keys run together.
EVERLONG_HD inline int64_t PageTasks(const index::HeadsJob& job) { return job.page_count * job.blocks; }
EVERLONG_HD constexpr int32_t TasksAtOnce(int32_t threads) { return threads / kPageLanes; }

// sums [kBlockRows] grow by the products of a token's key and the queries [dimensions][kBlockRows] of a block.
template <index::KeyStorage kStorage>
EVERLONG_HD inline void ScoreToken(const index::KeyLayout& layout, const uint32_t* scales, const uint32_t* words,
                                   const float* queries, float (&sums)[index::kBlockRows]) {
  constexpr int32_t kCodes = kStorage == index::KeyStorage::kBf16 ? 2 : 4;  // of a word
  const int32_t dims = 2 * index::PairsOf(layout.head_dim);
  for (int32_t row = 0; row < layout.TileRows(); ++row) {
    const uint32_t word = words[row * index::kTileTokens];
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kCodes; ++i) {
      const int32_t dim = row * kCodes + i;
      if (dim >= dims) continue;  // fills the word up
      const uint32_t code = word >> index::PlaceOf(kStorage, i).shift & index::CodeMask(kStorage);
      const float scale = kStorage == index::KeyStorage::kBf16 ? 1.0F : kv::FloatFromBits(scales[dim]);
      const float key = index::DecodeKey(kStorage, code, scale);
      EVERLONG_UNROLL
      for (int32_t at = 0; at < kQueryVectors; ++at) {
        constexpr int32_t kWidth = kVectorWidth<Float32Element>;
        float query[kWidth];
        WidenVector(LoadVector<Float32Element, kWidth>(queries, dim * index::kBlockRows + at * kWidth), query);
        EVERLONG_UNROLL
        for (int32_t r = 0; r < kWidth; ++r) sums[at * kWidth + r] = fmaf(query[r], key, sums[at * kWidth + r]);
      }
    }
  }
}

// First phase: tasks [first, first + TasksAtOnce(threads)). shared [kBlockRows][threads].
template <index::KeyStorage kStorage>
EVERLONG_HD inline void ScoreTokens(const index::HeadsJob& job, int64_t first, int32_t thread, int32_t threads,
                                    index::PageShare* shared) {
  const int64_t task = first + thread / kPageLanes;
  if (thread / kPageLanes >= TasksAtOnce(threads) || task >= PageTasks(job)) return;
  const index::HeadsPage page = job.pages[task / job.blocks];
  const int64_t block = task % job.blocks;
  const uint32_t* scales = page.words + job.key_heads[block] * job.layout.HeadWords(page.tokens);
  const uint32_t* tiles = scales + job.layout.ScaleWords();
  const float* queries = job.queries + block * 2 * index::PairsOf(job.layout.head_dim) * index::kBlockRows;
  const int32_t lane = thread % kPageLanes;
  index::PageShare shares[index::kBlockRows];
  EVERLONG_UNROLL
  for (int32_t row = 0; row < index::kBlockRows; ++row) shares[row] = {kNoScore, 0.0F};
  for (int32_t tile = page.first_token / index::kTileTokens; tile < index::TilesOf(page.tokens); ++tile) {
    const int32_t token = tile * index::kTileTokens + lane;
    if (token < page.first_token || token >= page.tokens) continue;
    float scores[index::kBlockRows] = {};
    ScoreToken<kStorage>(job.layout, scales, tiles + tile * job.layout.TileWords() + lane, queries, scores);
    EVERLONG_UNROLL
    for (int32_t row = 0; row < index::kBlockRows; ++row) AddScore(shares[row], scores[row]);
  }
  EVERLONG_UNROLL
  for (int32_t row = 0; row < index::kBlockRows; ++row) shared[row * threads + thread] = shares[row];
}

// Second phase, when all threads are through the first: a thread for each row of each task.
EVERLONG_HD inline void JoinTokens(const index::HeadsJob& job, int64_t first, int32_t thread, int32_t threads,
                                   const index::PageShare* shared) {
  for (int32_t i = thread; i < TasksAtOnce(threads) * index::kBlockRows; i += threads) {
    const int64_t task = first + i / index::kBlockRows;
    if (task >= PageTasks(job)) return;
    const int32_t row = i % index::kBlockRows;
    const index::PageShare* lanes = shared + row * threads + i / index::kBlockRows * kPageLanes;
    index::PageShare share{kNoScore, 0.0F};
    for (int32_t lane = 0; lane < kPageLanes; ++lane) share.largest = fmaxf(share.largest, lanes[lane].largest);
    for (int32_t lane = 0; lane < kPageLanes; ++lane) {
      share.sum += lanes[lane].sum * PowerOfTwo(lanes[lane].largest - share.largest);
    }
    job.shares[(task % job.blocks * index::kBlockRows + row) * job.page_count + task / job.blocks] = share;
  }
}

// What a thread has seen of a row; in fp64, since an archive has many pages.
struct RowSum {
  float largest;
  double sum;
};

EVERLONG_HD inline RowSum Join(RowSum a, RowSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * PowerOfTwo(a.largest - largest) + b.sum * PowerOfTwo(b.largest - largest)};
}

// First phase, of row `row`: every thread its pages. shared [threads].
EVERLONG_HD inline void SumRow(const index::HeadsJob& job, int64_t row, int32_t thread, int32_t threads,
                               RowSum* shared) {
  RowSum sum{kNoScore, 0.0};
  for (int64_t page = thread; page < job.page_count; page += threads) {
    const index::PageShare share = job.shares[row * job.page_count + page];
    sum = Join(sum, {share.largest, share.sum});
  }
  shared[thread] = sum;
}

// Second phase, by one thread.
EVERLONG_HD inline void FactorRow(const index::HeadsJob& job, int64_t row, int32_t threads, const RowSum* shared) {
  RowSum sum = shared[0];
  for (int32_t thread = 1; thread < threads; ++thread) sum = Join(sum, shared[thread]);
  job.factors[row] = {sum.largest, static_cast<float>(job.weights[row] / sum.sum)};
}

EVERLONG_HD inline void MassOfPage(const index::HeadsJob& job, int64_t page) {
  float mass = 0;
  for (int64_t row = 0; row < job.blocks * index::kBlockRows; ++row) {
    const index::PageShare share = job.shares[row * job.page_count + page];
    const index::RowFactor factor = job.factors[row];
    mass += share.sum * PowerOfTwo(share.largest - factor.largest) * factor.factor;
  }
  job.mass[page] = mass;
}

// body(std::integral_constant<KeyStorage>) for a storage: picks a kernel on the host.
template <class Body>
auto WithStorage(index::KeyStorage storage, const Body& body) {
  switch (storage) {
    case index::KeyStorage::kBf16:
      return body(std::integral_constant<index::KeyStorage, index::KeyStorage::kBf16>{});
    case index::KeyStorage::kInt8:
      return body(std::integral_constant<index::KeyStorage, index::KeyStorage::kInt8>{});
    case index::KeyStorage::kE4M3:
      break;
  }
  return body(std::integral_constant<index::KeyStorage, index::KeyStorage::kE4M3>{});
}

}  // namespace everlong::hip
