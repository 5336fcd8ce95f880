#include "everlong/kv/gather.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "everlong/base/dtype.h"
#include "everlong/base/parallel_for.h"
#include "everlong/kv/element.h"
#include "frame_rows.h"
#include "phases.h"
#include "slab_kernels.h"

namespace everlong::kv {
namespace {

// Rows that a thread takes at a time.
constexpr int64_t kChunkRows = 256;

// Rows that are neighbours on both sides.
struct Run {
  int64_t row = 0;
  int64_t count = 0;
};

std::vector<Run> RunsOf(std::span<const int64_t> sources, std::span<const int64_t> targets) {
  std::vector<Run> runs;
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool goes_on =
        i > 0 && sources[i] == sources[i - 1] + 1 && targets[i] == targets[i - 1] + 1 && runs.back().count < kChunkRows;
    if (goes_on) {
      ++runs.back().count;
    } else {
      runs.push_back({static_cast<int64_t>(i), 1});
    }
  }
  return runs;
}

int64_t BytesOf(const FrameKv& frame) {
  const int64_t last = RowIndex(frame, frame.layers - 1, frame.kv_heads - 1, frame.slots);
  return last * static_cast<int64_t>(DTypeSize(frame.dtype));
}

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto* first = static_cast<const std::byte*>(a);
  const auto* second = static_cast<const std::byte*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

Status RequireSlots(const char* name, std::span<const int64_t> slots, int64_t limit) {
  for (const int64_t slot : slots) EVERLONG_RETURN_IF_ERROR(RequireRange(name, slot, 1, limit));
  return OkStatus();
}

Status RequireHalf(const char* name, const SlotPhase& phase, const RopeTable& rope) {
  if (static_cast<size_t>(phase.half) == rope.inv_freq.size()) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": rotary_dim / 2 is " + std::to_string(phase.half) +
                              "; expected inv_freq's " + std::to_string(rope.inv_freq.size()));
}

}  // namespace

Status ValidateGather(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                      const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                      std::span<const int64_t> positions, const RopeTable& rope) {
  EVERLONG_RETURN_IF_ERROR(Validate(from, from_phase));
  EVERLONG_RETURN_IF_ERROR(Validate(to, to_phase));
  EVERLONG_RETURN_IF_ERROR(Validate(rope, to.head_dim));
  EVERLONG_RETURN_IF_ERROR(RequireHalf("from_cos", from_phase, rope));
  EVERLONG_RETURN_IF_ERROR(RequireHalf("to_cos", to_phase, rope));
  if (from.dtype != to.dtype || from.layers != to.layers || from.kv_heads != to.kv_heads ||
      from.head_dim != to.head_dim) {
    return InvalidArgumentError("from and to differ in element type, layers, KV heads or head_dim");
  }
  const int64_t from_bytes = BytesOf(from);
  const int64_t to_bytes = BytesOf(to);
  for (const void* buffer : {from.k, from.v}) {
    if (Overlap(buffer, from_bytes, to.k, to_bytes) || Overlap(buffer, from_bytes, to.v, to_bytes)) {
      return InvalidArgumentError("from and to share bytes; expected buffers of their own");
    }
  }
  if (targets.size() != sources.size() || positions.size() != sources.size()) {
    return InvalidArgumentError("sources, targets and positions are " + std::to_string(sources.size()) + ", " +
                                std::to_string(targets.size()) + " and " + std::to_string(positions.size()) +
                                " numbers; expected as many of each");
  }
  EVERLONG_RETURN_IF_ERROR(RequireSlots("sources", sources, from.slots));
  EVERLONG_RETURN_IF_ERROR(RequireSlots("targets", targets, to.slots));
  for (const int64_t position : positions) {
    if (position >= 0 && position < kPositionLimit) continue;
    return InvalidArgumentError("positions: " + std::to_string(position) + "; expected one in [0, " +
                                std::to_string(kPositionLimit) + ")");
  }
  std::vector<int64_t> ordered(targets.begin(), targets.end());
  std::ranges::sort(ordered);
  const auto twice = std::ranges::adjacent_find(ordered);
  if (twice == ordered.end()) return OkStatus();
  return InvalidArgumentError("targets: " + std::to_string(*twice) + " comes twice");
}

Status GatherSlots(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                   const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                   std::span<const int64_t> positions, const RopeTable& rope) {
  EVERLONG_RETURN_IF_ERROR(ValidateGather(from, from_phase, sources, to, to_phase, targets, positions, rope));
  const int64_t half = from_phase.half;
  const Phases taken = PhaseWriter(rope).Of(positions);
  std::vector<float> cos(sources.size() * static_cast<size_t>(half));
  std::vector<float> sin(cos.size());
  for (size_t row = 0; row < sources.size(); ++row) {
    const int64_t own = sources[row] * half;
    for (int64_t i = 0; i < half; ++i) {
      const size_t at = row * static_cast<size_t>(half) + static_cast<size_t>(i);
      const Phase lost = InversePhase({from_phase.cos[own + i], from_phase.sin[own + i]});
      const double c = taken.cos[at];
      const double s = taken.sin[at];
      cos[at] = static_cast<float>(c * lost.c - s * lost.s);
      sin[at] = static_cast<float>(s * lost.c + c * lost.s);
    }
  }

  const std::vector<Run> runs = RunsOf(sources, targets);
  const auto run_count = static_cast<int64_t>(runs.size());
  const Format format = FormatOf(from.dtype);
  const int64_t row_bytes = from.head_dim * FormatBytes(format);
  const int64_t heads = static_cast<int64_t>(from.layers) * from.kv_heads;
  ParallelFor(0, heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t in = RowIndex(from, head / from.kv_heads, head % from.kv_heads, 0);
      const int64_t out = RowIndex(to, head / to.kv_heads, head % to.kv_heads, 0);
      const std::byte* const from_k = ElementAt(static_cast<const void*>(from.k), from.dtype, in);
      const std::byte* const from_v = ElementAt(static_cast<const void*>(from.v), from.dtype, in);
      std::byte* const to_k = ElementAt(to.k, to.dtype, out);
      std::byte* const to_v = ElementAt(to.v, to.dtype, out);
      for (int64_t at = 0; at < run_count; ++at) {
        const Run& run = runs[static_cast<size_t>(at)];
        const int64_t source = sources[static_cast<size_t>(run.row)] * row_bytes;
        const int64_t target = targets[static_cast<size_t>(run.row)] * row_bytes;
        std::memcpy(to_v + target, from_v + source, static_cast<size_t>(run.count * row_bytes));
        if (half == 0) {
          std::memcpy(to_k + target, from_k + source, static_cast<size_t>(run.count * row_bytes));
          continue;
        }
        const SlabTask slab{
            {from_k + source, row_bytes, format},
            {to_k + target, row_bytes, format},
            run.count,
            from.head_dim,
            {cos.data() + run.row * half, sin.data() + run.row * half, half, static_cast<int32_t>(half), rope.pairing}};
        BestSlabKernels().turn(slab);
      }
    }
  });
  for (size_t row = 0; row < targets.size(); ++row) {
    const auto first = row * static_cast<size_t>(half);
    std::copy_n(taken.cos.data() + first, half, to_phase.cos + targets[row] * half);
    std::copy_n(taken.sin.data() + first, half, to_phase.sin + targets[row] * half);
  }
  return OkStatus();
}

}  // namespace everlong::kv
