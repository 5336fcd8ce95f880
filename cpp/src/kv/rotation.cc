#include "everlong/kv/rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/parallel_for.h"
#include "frame_rows.h"
#include "slab.h"

namespace everlong::kv {
namespace {

// Rows that one step widens into fp32: a slab of 64 x 128 floats stays in the L1/L2 cache.
constexpr int64_t kChunkRows = 64;

// Runs turn(rows, shape, first_token) over fp32 copies of all rows, chunk by chunk, and stores them to rows.out.
template <class Turn>
void ForEachChunk(const KeyRows& rows, const Turn& turn) {
  const int64_t chunks = (rows.tokens + kChunkRows - 1) / kChunkRows;
  ParallelFor(0, rows.batch * rows.heads * chunks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> slab(static_cast<size_t>(kChunkRows * rows.head_dim));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % chunks * kChunkRows;
      const int64_t head = task / chunks;  // b * heads + h
      const slab::Shape shape{std::min(kChunkRows, rows.tokens - first), rows.head_dim};
      const int64_t in = head / rows.heads * rows.stride_b + head % rows.heads * rows.stride_h + first * rows.stride_t;
      if (rows.stride_t == rows.head_dim) {
        slab::Widen(ElementAt(rows.in, rows.dtype, in), rows.dtype, shape.size(), slab.data());
      } else {
        for (int64_t t = 0; t < shape.tokens; ++t) {
          slab::Widen(ElementAt(rows.in, rows.dtype, in + t * rows.stride_t), rows.dtype, rows.head_dim,
                      slab.data() + t * rows.head_dim);
        }
      }
      turn(slab.data(), shape, first);
      const int64_t out = (head * rows.tokens + first) * rows.head_dim;
      slab::Narrow(slab.data(), rows.dtype, shape.size(), ElementAt(rows.out, rows.dtype, out));
    }
  });
}

// Moves `count` rows of `width` elements inside one buffer; the ranges may overlap.
void MoveRows(void* base, size_t element_size, int64_t width, int64_t source, int64_t target, int64_t count) {
  auto* bytes = static_cast<std::byte*>(base);
  const auto row_bytes = static_cast<int64_t>(element_size) * width;
  std::memmove(bytes + target * row_bytes, bytes + source * row_bytes, static_cast<size_t>(count * row_bytes));
}

// Turns `count` moved phases: the angle sum, in fp64, because phases are composed again and again.
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
  ForEachChunk(rows, [&](float* slab, slab::Shape shape, int64_t first) {
    slab::Unrotate(slab, shape, cos + first * half, sin + first * half, half, pairing);
  });
}

void RerotateRows(const KeyRows& rows, std::span<const int64_t> positions, const RopeTable& rope) {
  EVERLONG_CHECK(static_cast<int64_t>(positions.size()) == rows.tokens && Validate(rope, rows.head_dim).ok());
  const size_t half = rope.inv_freq.size();
  std::vector<float> cos(positions.size() * half);
  std::vector<float> sin(positions.size() * half);
  ParallelFor(0, rows.tokens, kChunkRows, [&](int64_t begin, int64_t end) {
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
      rope.CosSin(positions[t], std::span(cos).subspan(t * half, half), std::span(sin).subspan(t * half, half));
    }
  });
  const auto stride = static_cast<int64_t>(half);
  ForEachChunk(rows, [&](float* slab, slab::Shape shape, int64_t first) {
    slab::Rotate(slab, shape, cos.data() + first * stride, sin.data() + first * stride, static_cast<int32_t>(half),
                 rope.pairing);
  });
}

Status ShiftSlots(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                  int64_t delta, const RopeTable& rope) {
  EVERLONG_RETURN_IF_ERROR(Validate(frame, phase));
  EVERLONG_RETURN_IF_ERROR(Validate(rope, frame.head_dim));
  if (static_cast<size_t>(phase.half) != rope.inv_freq.size()) {
    return InvalidArgumentError("phase: rotary_dim / 2 is " + std::to_string(phase.half) + "; expected inv_freq's " +
                                std::to_string(rope.inv_freq.size()));
  }
  EVERLONG_RETURN_IF_ERROR(RequireRange("source", source, count, frame.slots));
  EVERLONG_RETURN_IF_ERROR(RequireRange("target", target, count, frame.slots));
  if (count == 0 || (source == target && delta == 0)) return OkStatus();

  RopeTable unit = rope;
  unit.attention_scaling = 1.0;  // the moved keys carry m already
  std::vector<float> cos(rope.inv_freq.size());
  std::vector<float> sin(rope.inv_freq.size());
  unit.CosSin(delta, cos, sin);

  const size_t element_size = DTypeSize(frame.dtype);
  ParallelFor(0, static_cast<int64_t>(frame.layers) * frame.kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> slab(static_cast<size_t>(kChunkRows * frame.head_dim));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head_row = RowIndex(frame, task / frame.kv_heads, task % frame.kv_heads, 0);
      void* k = ElementAt(frame.k, frame.dtype, head_row);
      MoveRows(ElementAt(frame.v, frame.dtype, head_row), element_size, frame.head_dim, source, target, count);
      MoveRows(k, element_size, frame.head_dim, source, target, count);
      if (delta == 0) continue;
      for (int64_t first = 0; first < count; first += kChunkRows) {
        const slab::Shape shape{std::min(kChunkRows, count - first), frame.head_dim};
        void* moved = ElementAt(k, frame.dtype, (target + first) * frame.head_dim);
        slab::Widen(moved, frame.dtype, shape.size(), slab.data());
        slab::RotateAll(slab.data(), shape, cos.data(), sin.data(), phase.half, rope.pairing);
        slab::Narrow(slab.data(), frame.dtype, shape.size(), moved);
      }
    }
  });
  if (phase.half > 0) {
    MoveRows(phase.cos, sizeof(float), phase.half, source, target, count);
    MoveRows(phase.sin, sizeof(float), phase.half, source, target, count);
    ComposePhase(phase, target, count, delta, rope);
  }
  return OkStatus();
}

}  // namespace everlong::kv
