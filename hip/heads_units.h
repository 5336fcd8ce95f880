// The work of the threads in a heads scan. Host code compiles it too, runs the threads one by one, and makes the
// exchanges through an array.
//
// ScorePages: a block of threads holds the queries of one block of rows and takes pages in turns. A page is scored by
// as many threads as a tile has tokens (its lanes). Each lane scores one token of every tile. Then lanes join their
// parts of each row's softmax by exchanges in pairs. SumRow: a block of threads sums up a row. MassOfPage: a thread a
// page.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "elements.h"
#include "everlong/index/heads_job.h"
#include "page_tasks.h"
#include "row_exchange.h"

namespace everlong::hip {

inline constexpr int32_t kPageLanes = index::kTileTokens;
inline constexpr int32_t kPagesALane = 4;  // and block of threads: pages that share the queries it has loaded
// Tokens that a lane scores side by side. Each query that it loads serves both.
inline constexpr int32_t kTilesAtOnce = 2;
inline constexpr int32_t kQueryWidth = kVectorWidth<Float32Element>;
static_assert(index::kBlockRows % kQueryWidth == 0);

// Below every score, and not infinite: the difference of two such is 0.
inline constexpr float kNoScore = -0x1.FFFFFEp127F;

// Return 2^x for x <= 0, and 0 below 2^-126. The CPU also ignores scores that far below the largest.
EVERLONG_HD inline float PowerOfTwo(float x) { return x < -126.0F ? 0.0F : exp2f(x); }

// Add the score of a token to a row's share.
EVERLONG_HD inline void AddScore(index::PageShare& share, float score) {
  const bool above = score > share.largest;
  const float power = PowerOfTwo(above ? share.largest - score : score - share.largest);
  share.sum = above ? share.sum * power + 1.0F : share.sum + power;
  share.largest = above ? score : share.largest;
}

EVERLONG_HD constexpr int32_t PagesAtOnce(int32_t threads) { return threads / kPageLanes; }
EVERLONG_HD constexpr int32_t PagesAGroup(int32_t threads) { return PagesAtOnce(threads) * kPagesALane; }
EVERLONG_HD inline int64_t ScoreTasks(const index::HeadsJob& job, int32_t threads) {
  return PageTasks(job.page_count, job.blocks, PagesAGroup(threads));
}
EVERLONG_HD inline PageTask ScoreTaskAt(const index::HeadsJob& job, const Divisor& by_blocks, int64_t task,
                                        int32_t threads) {
  return PageTaskAt(job.page_count, job.blocks, by_blocks, task, PagesAGroup(threads));
}

EVERLONG_HD constexpr int32_t CodesAWord(index::KeyStorage storage) {
  return storage == index::KeyStorage::kBf16 ? 2 : 4;
}

// Return the dimensions that the words of a tile hold. Those past the key's are zeros, and so are the queries' there.
template <index::KeyStorage kStorage>
EVERLONG_HD constexpr int32_t WordDims(const index::KeyLayout& layout) {
  return layout.TileRows() * CodesAWord(kStorage);
}

// First phase: stage the queries of a block of rows, [WordDims][kBlockRows], where the threads of a block share them.
template <index::KeyStorage kStorage>
EVERLONG_HD inline void StageQueries(const index::HeadsJob& job, int64_t block, int32_t thread, int32_t threads,
                                     float* staged) {
  const int32_t given = 2 * index::PairsOf(job.layout.head_dim) * index::kBlockRows;
  const float* queries = job.queries + block * given;
  for (int32_t i = thread * kQueryWidth; i < WordDims<kStorage>(job.layout) * index::kBlockRows;
       i += threads * kQueryWidth) {
    ElementVector<Float32Element, kQueryWidth> vector{};
    if (i < given) vector = LoadVector<Float32Element, kQueryWidth>(queries, i);
    StoreVector(vector, staged, i);
  }
}

// Decode as index::DecodeKey, with FP8 by the hardware where there is one.
template <index::KeyStorage kStorage>
EVERLONG_HD inline float KeyOf(uint32_t code, float scale) {
  if constexpr (kStorage == index::KeyStorage::kE4M3) {
    const float value = E4M3Element::Widen(static_cast<uint8_t>(code));
    return BFloat16ToFloat(FloatToBFloat16(value * scale));
  } else {
    return index::DecodeKey(kStorage, code, scale);
  }
}

// Set sums [tile][kBlockRows] to the products of a token's key, in each of the tiles, and the staged queries.
template <index::KeyStorage kStorage>
EVERLONG_HD inline void ScoreTokens(const index::KeyLayout& layout, const uint32_t* scales,
                                    const uint32_t* const (&tiles)[kTilesAtOnce], const float* queries,
                                    float (&sums)[kTilesAtOnce][index::kBlockRows]) {
  constexpr int32_t kCodes = CodesAWord(kStorage);
  EVERLONG_UNROLL
  for (int32_t tile = 0; tile < kTilesAtOnce; ++tile) {
    EVERLONG_UNROLL
    for (int32_t r = 0; r < index::kBlockRows; ++r) sums[tile][r] = 0;
  }
  for (int32_t row = 0; row < layout.TileRows(); ++row) {
    uint32_t words[kTilesAtOnce];
    EVERLONG_UNROLL
    for (int32_t tile = 0; tile < kTilesAtOnce; ++tile) words[tile] = tiles[tile][row * index::kTileTokens];
    float scale[kCodes] = {};
    if constexpr (kStorage != index::KeyStorage::kBf16) {
      WidenVector(LoadVector<Float32Element, kCodes>(scales, row * kCodes), scale);
    }
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kCodes; ++i) {
      float query[index::kBlockRows];
      EVERLONG_UNROLL
      for (int32_t r = 0; r < index::kBlockRows; r += kQueryWidth) {
        const int32_t at = (row * kCodes + i) * index::kBlockRows + r;
        WidenVector(LoadVector<Float32Element, kQueryWidth>(queries, at), query + r);
      }
      EVERLONG_UNROLL
      for (int32_t tile = 0; tile < kTilesAtOnce; ++tile) {
        const uint32_t code = words[tile] >> index::PlaceOf(kStorage, i).shift & index::CodeMask(kStorage);
        const float key = KeyOf<kStorage>(code, scale[i]);
        EVERLONG_UNROLL
        for (int32_t r = 0; r < index::kBlockRows; ++r) sums[tile][r] = fmaf(query[r], key, sums[tile][r]);
      }
    }
  }
}

// Second phase: compute a lane's share of a page, for every row of a block: [kBlockRows].
template <index::KeyStorage kStorage>
EVERLONG_HD inline void ScorePage(const index::HeadsJob& job, int64_t block, int64_t at, int32_t lane,
                                  const float* queries, index::PageShare (&shares)[index::kBlockRows]) {
  const index::HeadsPage page = job.pages[at];
  const uint32_t* scales = page.words + job.key_heads[block] * job.layout.HeadWords(page.tokens);
  const uint32_t* tiles = scales + job.layout.ScaleWords() + lane;
  EVERLONG_UNROLL
  for (int32_t row = 0; row < index::kBlockRows; ++row) shares[row] = {kNoScore, 0.0F};
  const int32_t end = index::TilesOf(page.tokens);
  for (int32_t first = page.first_token / index::kTileTokens; first < end; first += kTilesAtOnce) {
    const uint32_t* words[kTilesAtOnce];
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kTilesAtOnce; ++i) {
      const int32_t tile = first + i < end ? first + i : first;  // a tile past the end is scored for nothing
      words[i] = tiles + tile * job.layout.TileWords();
    }
    float scores[kTilesAtOnce][index::kBlockRows];
    ScoreTokens<kStorage>(job.layout, scales, words, queries, scores);
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kTilesAtOnce; ++i) {
      const int32_t token = (first + i) * index::kTileTokens + lane;
      if (token < page.first_token || token >= page.tokens) continue;
      EVERLONG_UNROLL
      for (int32_t row = 0; row < index::kBlockRows; ++row) AddScore(shares[row], scores[i][row]);
    }
  }
}

// Third phase: the lanes of a page join their rows.
struct JoinShares {
  EVERLONG_HD static index::PageShare Join(index::PageShare a, index::PageShare b) {
    const float largest = fmaxf(a.largest, b.largest);
    return {largest, a.sum * PowerOfTwo(a.largest - largest) + b.sum * PowerOfTwo(b.largest - largest)};
  }
};
using ShareExchange = RowExchange<index::kBlockRows, kPageLanes, JoinShares>;
static_assert(ShareExchange::kKept == 1);

EVERLONG_HD inline void StoreShare(const index::HeadsJob& job, int64_t block, int64_t page, int32_t lane,
                                   index::PageShare share) {
  if (!ShareExchange::Writes(lane)) return;
  job.shares[(block * index::kBlockRows + ShareExchange::FirstRow(lane)) * job.page_count + page] = share;
}

// What a thread has seen of a row. It is in fp64, since an archive has many pages.
struct RowSum {
  float largest;
  double sum;
};

EVERLONG_HD inline RowSum Join(RowSum a, RowSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * PowerOfTwo(a.largest - largest) + b.sum * PowerOfTwo(b.largest - largest)};
}

// First phase, of row `row`: every thread sums its pages. shared [threads].
EVERLONG_HD inline void SumRow(const index::HeadsJob& job, int64_t row, int32_t thread, int32_t threads,
                               RowSum* shared) {
  RowSum sum{kNoScore, 0.0};
  for (int64_t page = thread; page < job.page_count; page += threads) {
    const index::PageShare share = job.shares[row * job.page_count + page];
    sum = Join(sum, {share.largest, share.sum});
  }
  shared[thread] = sum;
}

// Second phase, in steps until one sum is left: of `left` sums the upper half joins the lower half.
EVERLONG_HD constexpr int32_t HalfOf(int32_t left) { return (left + 1) / 2; }
EVERLONG_HD inline void FoldRow(int32_t left, int32_t thread, RowSum* shared) {
  const int32_t half = HalfOf(left);
  if (thread + half < left) shared[thread] = Join(shared[thread], shared[thread + half]);
}

// Third phase, by one thread.
EVERLONG_HD inline void FactorRow(const index::HeadsJob& job, int64_t row, RowSum sum) {
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

// Call body(std::integral_constant<KeyStorage>) for a storage, to pick a kernel on the host.
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
