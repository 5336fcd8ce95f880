// How the lanes of a page join their results of the same rows. In each step a lane exchanges rows with the lane
// numbered lane ^ Distance. While a lane has several rows, it gives half of them away and keeps the others. After that,
// both keep their one row. Host code compiles it too, and makes the exchanges through an array.
#pragma once

#include <cstdint>

#include "elements.h"

namespace everlong::hip {

// kLanes and kRows are powers of two. Joining::Join(row, row) joins the results of two lanes, in either order.
template <int32_t kRows, int32_t kLanes, class Joining>
struct RowExchange {
  static constexpr int32_t kSteps = kLanes == 1 ? 0 : RowExchange<kRows, (kLanes + 1) / 2, Joining>::kSteps + 1;
  static_assert(kLanes == 1 << kSteps);
  EVERLONG_HD static constexpr int32_t Distance(int32_t step) { return kLanes >> (step + 1); }
  // Return the rows that a lane exchanges in a step.
  EVERLONG_HD static constexpr int32_t Exchanged(int32_t step) {
    const int32_t rows = kRows >> (step + 1);
    return rows > 0 ? rows : 1;
  }

  // Put given [Exchanged(kStep)] aside for the other lane. `rows` keeps as many.
  template <int32_t kStep, class Row>
  EVERLONG_HD static void Give(int32_t lane, Row (&rows)[kRows], Row (&given)[Exchanged(kStep)]) {
    constexpr int32_t kGiven = Exchanged(kStep);
    constexpr bool kHalves = kGiven * 2 <= kRows >> kStep;
    const bool upper = (lane & Distance(kStep)) != 0;
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kGiven; ++i) {
      const Row low = rows[i];
      const Row high = rows[kHalves ? i + kGiven : i];
      given[i] = upper ? low : high;
      rows[i] = upper ? high : low;
    }
  }
  template <int32_t kStep, class Row>
  EVERLONG_HD static void Take(const Row (&taken)[Exchanged(kStep)], Row (&rows)[kRows]) {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < Exchanged(kStep); ++i) rows[i] = Joining::Join(rows[i], taken[i]);
  }

  // After all steps: how many rows a lane has in front, the first of them, and whether no lane before has them too.
  static constexpr int32_t kKept = kRows > kLanes ? kRows / kLanes : 1;
  static constexpr int32_t kLanesARow = kRows > kLanes ? 1 : kLanes / kRows;
  EVERLONG_HD static constexpr int32_t FirstRow(int32_t lane) { return lane / kLanesARow * kKept; }
  EVERLONG_HD static constexpr bool Writes(int32_t lane) { return lane % kLanesARow == 0; }
};

template <int32_t kRows, class Joining>
struct RowExchange<kRows, 1, Joining> {
  static constexpr int32_t kSteps = 0;
};

}  // namespace everlong::hip
