// The work of the threads in a scan of the part "meaning". Host code compiles it too, runs the threads one by one, and
// makes the exchanges through an array.
//
// ScorePages: a block of threads holds the question tokens of one block of rows and takes pages in turns. A page is
// scored by the few threads (its lanes) that read a tile together, each some of its vectors. Then the lanes join the
// largest products of each row by exchanges in pairs. ScoreOfPage: one thread a page adds up the scores of the page and
// of those beside it. The results are the host's to the bit: dot products are integers, and the rest follows the host's
// order.
#pragma once

#include <cmath>
#include <cstdint>

#include "elements.h"
#include "everlong/index/meaning_job.h"
#include "page_tasks.h"
#include "row_exchange.h"

namespace everlong::hip {

// Vectors that a lane scores side by side. One access reads four numbers of each. Each loaded word of the question
// serves all.
inline constexpr int32_t kLaneVectors = 4;
inline constexpr int32_t kTileLanes = index::kTileVectors / kLaneVectors;
inline constexpr int32_t kTilePagesALane = 4;  // and block of threads: pages that share the rows it has loaded
EVERLONG_HD constexpr int32_t TilePagesAtOnce(int32_t threads) { return threads / kTileLanes; }
EVERLONG_HD constexpr int32_t TilePagesAGroup(int32_t threads) { return TilePagesAtOnce(threads) * kTilePagesALane; }

// Four words as one access. They may be floats too: the bits of a Float32Element are what is stored.
using Words = ElementVector<Float32Element, 4>;
EVERLONG_HD inline Words LoadWords(const void* base, int64_t at) { return LoadVector<Float32Element, 4>(base, at); }

// Return sum + the dot product of four int8 each.
EVERLONG_HD inline int32_t AddDotOfBytes(uint32_t a, uint32_t b, int32_t sum) {
#if defined(__CUDA_ARCH__)
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)
  return __builtin_amdgcn_sdot4(static_cast<int32_t>(a), static_cast<int32_t>(b), sum, false);
#else
  for (uint32_t shift = 0; shift < 32; shift += 8) {
    sum += int32_t{static_cast<int8_t>(a >> shift)} * int32_t{static_cast<int8_t>(b >> shift)};
  }
  return sum;
#endif
}

EVERLONG_HD inline int64_t MeaningTasks(const index::MeaningJob& job, int32_t threads) {
  return PageTasks(job.page_count, job.blocks, TilePagesAGroup(threads));
}
EVERLONG_HD inline PageTask MeaningTaskAt(const index::MeaningJob& job, const Divisor& by_blocks, int64_t task,
                                          int32_t threads) {
  return PageTaskAt(job.page_count, job.blocks, by_blocks, task, TilePagesAGroup(threads));
}

// First phase: stage a block of rows, [quads][kMeaningRows], in the memory that a block of threads shares.
EVERLONG_HD inline void StageRows(const index::MeaningJob& job, int64_t block, int32_t thread, int32_t threads,
                                  uint32_t* staged) {
  const int32_t words = job.quads * index::kMeaningRows;
  for (int32_t i = thread * 4; i < words; i += threads * 4) {
    StoreVector(LoadWords(job.rows + block * words, i), staged, i);
  }
}

// Set dots [kLaneVectors][kMeaningRows] to the products of a lane's vectors of a tile and the staged rows. It returns
// the words that it reads last: 1 over the vectors' lengths.
EVERLONG_HD inline Words DotsOfTile(const uint32_t* tile, int32_t quads, const uint32_t* rows,
                                    int32_t (&dots)[kLaneVectors][index::kMeaningRows]) {
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kLaneVectors; ++i) {
    EVERLONG_UNROLL
    for (int32_t row = 0; row < index::kMeaningRows; ++row) dots[i][row] = 0;
  }
  Words next = LoadWords(tile, 0);
  for (int32_t quad = 0; quad < quads; ++quad) {
    const Words vectors = next;
    next = LoadWords(tile, int64_t{quad + 1} * index::kTileVectors);  // it loads while this one is multiplied
    EVERLONG_UNROLL
    for (int32_t row = 0; row < index::kMeaningRows; row += 4) {
      const Words four = LoadWords(rows, quad * index::kMeaningRows + row);
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kLaneVectors; ++i) {
        const uint32_t numbers = vectors.bits[i] ^ 0x80808080U;  // without the 128 in each
        EVERLONG_UNROLL
        for (int32_t r = 0; r < 4; ++r) {
          dots[i][row + r] = AddDotOfBytes(numbers, four.bits[r], dots[i][row + r]);
        }
      }
    }
  }
  return next;
}

// Second phase: compute the largest products that a lane has of a page: [kMeaningRows].
EVERLONG_HD inline void MaximaOfLane(const index::MeaningPage& page, int32_t quads, int32_t lane, const uint32_t* rows,
                                     float (&maxima)[index::kMeaningRows]) {
  EVERLONG_UNROLL
  for (int32_t row = 0; row < index::kMeaningRows; ++row) maxima[row] = -HUGE_VALF;
  for (int32_t first = page.first / index::kTileVectors * index::kTileVectors; first < page.last;
       first += index::kTileVectors) {
    const uint32_t* tile = page.tiles + first / index::kTileVectors * index::MeaningTileWords(quads);
    int32_t dots[kLaneVectors][index::kMeaningRows];
    const Words lengths = DotsOfTile(tile + lane * kLaneVectors, quads, rows, dots);
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kLaneVectors; ++i) {
      const int32_t vector = first + lane * kLaneVectors + i;
      if (vector < page.first || vector >= page.last) continue;
      const float per_length = Float32Element::Widen(lengths.bits[i]);
      EVERLONG_UNROLL
      for (int32_t row = 0; row < index::kMeaningRows; ++row) {
        maxima[row] = fmaxf(maxima[row], static_cast<float>(dots[i][row]) * per_length);
      }
    }
  }
}

// Third phase: the lanes of a page join their rows.
struct Larger {
  EVERLONG_HD static float Join(float a, float b) { return fmaxf(a, b); }
};
using MaximaExchange = RowExchange<index::kMeaningRows, kTileLanes, Larger>;
static_assert(MaximaExchange::kKept == 4, "one access stores them");

EVERLONG_HD inline void StoreMaxima(const index::MeaningJob& job, int64_t block, int64_t page, int32_t lane,
                                    const float (&maxima)[index::kMeaningRows]) {
  const int64_t at = (block * job.page_count + page) * index::kMeaningRows + MaximaExchange::FirstRow(lane);
  StoreVector(NarrowVector<Float32Element, 4>(maxima), job.maxima, at);
}

EVERLONG_HD inline void ScoreOfPage(const index::MeaningJob& job, int64_t at) {
  const index::MeaningPage page = job.pages[at];
  index::MeaningSum sum{0.0, 0.0};
  if (!job.is_first) sum = job.sums[at];
  for (int64_t block = 0; block < job.blocks; ++block) {
    const float* maxima = job.maxima + block * job.page_count * index::kMeaningRows;
    EVERLONG_UNROLL
    for (int32_t row = 0; row < index::kMeaningRows; row += 4) {
      float own[4];
      float before[4];
      float after[4];
      WidenVector(LoadWords(maxima, at * index::kMeaningRows + row), own);
      WidenVector(LoadWords(maxima, int64_t{page.before} * index::kMeaningRows + row), before);
      WidenVector(LoadWords(maxima, int64_t{page.after} * index::kMeaningRows + row), after);
      EVERLONG_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const double scale = job.scales[block * index::kMeaningRows + row + i];
        sum.alone += scale * static_cast<double>(own[i]);
        sum.with_neighbours += scale * static_cast<double>(fmaxf(own[i], fmaxf(before[i], after[i])));
      }
    }
  }
  job.sums[at] = sum;
  job.scores[at] = {static_cast<float>(sum.alone), static_cast<float>(sum.with_neighbours)};
}

}  // namespace everlong::hip
