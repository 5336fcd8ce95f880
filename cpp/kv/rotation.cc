#include "everlong/kv/rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/parallel_for.h"
#include "frame_rows.h"
#include "phases.h"
#include "slab_kernels.h"

namespace everlong::kv {
namespace {

// Rows that a thread takes at a time.
constexpr int64_t kChunkRows = 64;

// Turn all rows by phases [tokens, half].
void TurnRows(const KeyRows& rows, const float* cos, const float* sin, int32_t half, Pairing pairing) {
  const int64_t chunks = (rows.tokens + kChunkRows - 1) / kChunkRows;
  const Format format = FormatOf(rows.dtype);
  const int64_t bytes = FormatBytes(format);
  ParallelFor(0, rows.batch * rows.heads * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % chunks * kChunkRows;
      const int64_t head = task / chunks;  // b * heads + h
      const int64_t in = head / rows.heads * rows.stride_b + head % rows.heads * rows.stride_h + first * rows.stride_t;
      const int64_t out = (head * rows.tokens + first) * rows.head_dim;
      SlabTask slab;
      slab.in = {ElementAt(rows.in, rows.dtype, in), rows.stride_t * bytes, format};
      slab.out = {ElementAt(rows.out, rows.dtype, out), rows.head_dim * bytes, format};
      slab.tokens = std::min(kChunkRows, rows.tokens - first);
      slab.dim = rows.head_dim;
      slab.rotation = {cos + first * half, sin + first * half, half, half, pairing};
      BestSlabKernels().turn(slab);
    }
  });
}

// Move `count` rows inside one buffer. The ranges may overlap.
void MoveRows(void* base, int64_t row_bytes, int64_t source, int64_t target, int64_t count) {
  auto* bytes = static_cast<std::byte*>(base);
  std::memmove(bytes + target * row_bytes, bytes + source * row_bytes, static_cast<size_t>(count * row_bytes));
}

// Turn `count` moved phases. The angle sum is in fp64, because phases are composed again and again.
void ComposePhase(const SlotPhase& phase, int64_t target, int64_t count, int64_t delta, const RopeTable& rope) {
  std::vector<double> cos(rope.inv_freq.size());
  std::vector<double> sin(rope.inv_freq.size());
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double angle = static_cast<double>(delta) * rope.inv_freq[i];
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
  for (int64_t slot = target; slot < target + count; ++slot) {
    for (int32_t i = 0; i < phase.half; ++i) {
      const auto channel = static_cast<size_t>(i);
      const double c = phase.cos[slot * phase.half + i];
      const double s = phase.sin[slot * phase.half + i];
      phase.cos[slot * phase.half + i] = static_cast<float>(c * cos[channel] - s * sin[channel]);
      phase.sin[slot * phase.half + i] = static_cast<float>(s * cos[channel] + c * sin[channel]);
    }
  }
}

}  // namespace

void DerotateRows(const KeyRows& rows, const float* cos, const float* sin, int32_t half, Pairing pairing) {
  EVERLONG_CHECK(half >= 0 && half <= rows.head_dim / 2);
  const Phases inverse = InversePhases(cos, sin, rows.tokens * half);
  TurnRows(rows, inverse.cos.data(), inverse.sin.data(), half, pairing);
}

void RerotateRows(const KeyRows& rows, std::span<const int64_t> positions, const RopeTable& rope) {
  EVERLONG_CHECK(static_cast<int64_t>(positions.size()) == rows.tokens && Validate(rope, rows.head_dim).ok());
  const Phases phases = PhaseWriter(rope).Of(positions);
  TurnRows(rows, phases.cos.data(), phases.sin.data(), rope.rotary_dim() / 2, rope.pairing);
}

Status ValidateShift(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                     int64_t delta, const RopeTable& rope) {
  EVERLONG_RETURN_IF_ERROR(Validate(frame, phase));
  EVERLONG_RETURN_IF_ERROR(Validate(rope, frame.head_dim));
  if (static_cast<size_t>(phase.half) != rope.inv_freq.size()) {
    return InvalidArgumentError("phase: rotary_dim / 2 is " + std::to_string(phase.half) + "; expected inv_freq's " +
                                std::to_string(rope.inv_freq.size()));
  }
  EVERLONG_RETURN_IF_ERROR(RequireRange("source", source, count, frame.slots));
  EVERLONG_RETURN_IF_ERROR(RequireRange("target", target, count, frame.slots));
  if (delta > -kPositionLimit && delta < kPositionLimit) return OkStatus();
  return InvalidArgumentError("delta is " + std::to_string(delta) + "; expected a number of positions below " +
                              std::to_string(kPositionLimit) + " in either direction");
}

Status ShiftSlots(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                  int64_t delta, const RopeTable& rope) {
  EVERLONG_RETURN_IF_ERROR(ValidateShift(frame, phase, source, target, count, delta, rope));
  if (count == 0 || (source == target && delta == 0)) return OkStatus();

  RopeTable unit = rope;
  unit.attention_scaling = 1.0;  // the moved keys have m already
  std::vector<float> cos(rope.inv_freq.size());
  std::vector<float> sin(rope.inv_freq.size());
  unit.CosSin(delta, cos, sin);

  const Format format = FormatOf(frame.dtype);
  const int64_t row_bytes = frame.head_dim * FormatBytes(format);
  // Rows that move up are taken from the last one, so that none is overwritten before it is read.
  const bool descending = target > source;
  const int64_t first = descending ? count - 1 : 0;
  const int64_t stride = descending ? -row_bytes : row_bytes;
  ParallelFor(0, static_cast<int64_t>(frame.layers) * frame.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head_row = RowIndex(frame, task / frame.kv_heads, task % frame.kv_heads, 0);
      MoveRows(ElementAt(frame.v, frame.dtype, head_row), row_bytes, source, target, count);
      std::byte* const k = ElementAt(frame.k, frame.dtype, head_row);
      if (delta == 0) {
        MoveRows(k, row_bytes, source, target, count);
        continue;
      }
      const SlabTask slab{{k + (source + first) * row_bytes, stride, format},
                          {k + (target + first) * row_bytes, stride, format},
                          count,
                          frame.head_dim,
                          {cos.data(), sin.data(), 0, phase.half, rope.pairing}};
      BestSlabKernels().turn(slab);
    }
  });
  if (phase.half > 0) {
    const auto phase_bytes = static_cast<int64_t>(phase.half * sizeof(float));
    MoveRows(phase.cos, phase_bytes, source, target, count);
    MoveRows(phase.sin, phase_bytes, source, target, count);
    ComposePhase(phase, target, count, delta, rope);
  }
  return OkStatus();
}

}  // namespace everlong::kv
