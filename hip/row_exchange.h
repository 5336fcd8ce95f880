// How the lanes of a page join what each has of the same rows: in each step a lane and that with the number lane ^
// Distance exchange rows. While a lane has several rows it gives half of them away and keeps the others; then both keep
// their one. Host code compiles it too, and makes the exchanges by an array.
#pragma once

#include <cstdint>

#include "elements.h"

namespace everlong::hip {

// kLanes is a power of two, and so is kRows. Joining::Join(row, row) is what two lanes have together, whichever is
// first.
template <int32_t kRows, int32_t kLanes, class Joining>
struct RowExchange {
  static constexpr int32_t kSteps = kLanes == 1 ? 0 : RowExchange<kRows, (kLanes + 1) / 2, Joining>::kSteps + 1;
  static_assert(kLanes == 1 << kSteps);
  EVERLONG_HD static constexpr int32_t Distance(int32_t step) { return kLanes >> (step + 1); }
  // Rows that a lane exchanges in a step.
  EVERLONG_HD static constexpr int32_t Exchanged(int32_t step) {
    const int32_t rows = kRows >> (step + 1);
    return rows > 0 ? rows : 1;
  }

  // given [Exchanged(kStep)] goes to the other lane; rows keeps as many.
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

  // After all steps: how many rows a lane has, in front, from which on, and whether no lane before it has them too.
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
