// Kernels run on the host as their launchers run them on a GPU: the same choice of element type, width and pairing,
// blocks and threads as loops.
#pragma once

#include <cstdint>
#include <vector>

#include "../../hip/archive_units.h"
#include "../../hip/restore_units.h"
#include "../../hip/rotation_units.h"
#include "../../hip/shift_units.h"

namespace everlong::hip::host {

inline constexpr int32_t kThreads = 48;  // fewer than a GPU's, and no power of two

// body(element, width, interleaved) as types, as WithElement and the launchers pick them.
template <class Body>
void Dispatch(DType dtype, bool vectors, bool interleaved, const Body& body) {
  WithElement(dtype, [&](auto element) {
    const auto with_pairing = [&](auto width) {
      if (interleaved) {
        body(element, width, std::true_type{});
      } else {
        body(element, width, std::false_type{});
      }
    };
    if (vectors) {
      with_pairing(std::integral_constant<int32_t, kVectorWidth<decltype(element)>>{});
    } else {
      with_pairing(std::integral_constant<int32_t, 1>{});
    }
  });
}

inline int32_t VectorWidth(DType dtype) {
  return WithElement(dtype, [](auto element) { return kVectorWidth<decltype(element)>; });
}

template <Turn kTurn>
bool TurnRows(const HeadRows& rows, const PairPhase& phase) {
  const bool vectors = AllowsVectors(rows, phase.half, VectorWidth(rows.dtype));
  Dispatch(rows.dtype, vectors, phase.interleaved, [&](auto element, auto width, auto interleaved) {
    const int64_t units = UnitCount(rows, phase.half, width());
    if (units == 0) return;
    const RowDivisors by = DivisorsOf(rows, phase.half, width());
    for (int64_t i = 0; i < units; ++i) {
      ProcessUnit<decltype(element), width(), kTurn, interleaved()>(i, rows, phase, by);
    }
  });
  return vectors;
}

// Rows of a step of a launch are moved in no order; here, to make a dependence show, the last first when `backwards`.
inline void MoveRows(HeadRows rows, const PairPhase& phase, bool backwards) {
  const bool vectors = AllowsVectors(rows, phase.half, VectorWidth(rows.dtype));
  Dispatch(rows.dtype, vectors, phase.interleaved, [&](auto element, auto width, auto interleaved) {
    const int64_t units = UnitCount(rows, phase.half, width());
    if (units == 0) return;
    const RowDivisors by = DivisorsOf(rows, phase.half, width());
    for (int64_t i = 0; i < units; ++i) {
      ProcessUnit<decltype(element), width(), Turn::kOn, interleaved()>(backwards ? units - 1 - i : i, rows, phase, by);
    }
  });
}

inline void Archive(const ArchiveJob& job) {
  *job.rejected = RejectedNumber{};
  for (int64_t i = 0; i < job.tokens * job.phase.half; ++i) InvertPhase(i, job);
  const bool vectors = AllowsVectors(job.frame, job.phase.half, VectorWidth(job.frame.dtype));
  Dispatch(job.frame.dtype, vectors, job.interleaved, [&](auto element, auto width, auto interleaved) {
    using Archiver = HeadPageArchiver<decltype(element), width(), interleaved()>;
    std::vector<uint32_t> shared(static_cast<size_t>(SharedWords(job)), 0xABABABABU);
    const auto phase = [&](int64_t task, const auto& run) {
      for (int32_t thread = 0; thread < kThreads; ++thread) run(Archiver(job, task, shared.data(), thread, kThreads));
    };
    for (int64_t task = 0; task < TasksOf(job); ++task) {
      if (kv::HasScales(job.codec)) {
        phase(task, [](const Archiver& archiver) { archiver.Clear(); });
        phase(task, [](const Archiver& archiver) { archiver.Measure(); });
        phase(task, [](const Archiver& archiver) { archiver.StoreScales(); });
      }
      phase(task, [](const Archiver& archiver) { archiver.Encode(); });
    }
    ReadRejected<decltype(element), interleaved()>(job);
  });
}

inline void Restore(const RestoreJob& job) {
  for (int64_t row = 0; row < job.count; ++row) {
    const kv::PagePlacement& place = job.placements[row];
    for (int64_t i = 0; i < place.tokens * static_cast<int64_t>(job.phase.half); ++i) {
      PlacePhase(i, place, job, Divisor(job.phase.half));
    }
  }
  const bool vectors = AllowsVectors(job.frame, job.phase.half, VectorWidth(job.frame.dtype));
  Dispatch(job.frame.dtype, vectors, job.interleaved, [&](auto element, auto width, auto interleaved) {
    using Element = decltype(element);
    for (int64_t row = 0; row < job.count; ++row) {
      const kv::PagePlacement& place = job.placements[row];
      const RestoreDivisors by_key = DivisorsOf(job, job.phase.half, width());
      const RestoreDivisors by_value = DivisorsOf(job, 0, width());
      for (int64_t i = 0; i < UnitsOfPlacement(job, job.phase.half, width()); ++i) {
        RestoreUnit<Element, width(), interleaved(), true>(i, place, job, by_key);
      }
      for (int64_t i = 0; i < UnitsOfPlacement(job, 0, width()); ++i) {
        RestoreUnit<Element, width(), false, false>(i, place, job, by_value);
      }
    }
  });
}

}  // namespace everlong::hip::host
