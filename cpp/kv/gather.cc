#include "everlong/kv/gather.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "everlong/base/dtype.h"
#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"
#include "frame_rows.h"
#include "phases.h"
#include "slab_kernels.h"

namespace everlong::kv {
namespace {

// Rows that are turned at a time. Rows that are not neighbours are brought together in so much of the L1 cache.
constexpr int64_t kChunkRows = 64;

bool AreNeighbours(std::span<const int64_t> slots) {
  for (size_t i = 1; i < slots.size(); ++i) {
    if (slots[i] != slots[i - 1] + 1) return false;
  }
  return true;
}

// The rows of one head of k or v on one side of a gather: the buffer itself where they are neighbours, else copies.
class Rows {
 public:
  Rows(std::byte* head, std::span<const int64_t> slots, int64_t row_bytes, std::byte* scratch)
      : head_(head), slots_(slots), row_bytes_(row_bytes), direct_(AreNeighbours(slots)), scratch_(scratch) {}

  [[nodiscard]] std::byte* data() const { return direct_ ? At(0) : scratch_; }
  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] std::byte* At(size_t i) const { return head_ + slots_[i] * row_bytes_; }
  void Load() const {
    if (direct_) return;
    for (size_t i = 0; i < slots_.size(); ++i) Copy(scratch_ + static_cast<int64_t>(i) * row_bytes_, At(i));
  }
  void Store() const {
    if (direct_) return;
    for (size_t i = 0; i < slots_.size(); ++i) Copy(At(i), scratch_ + static_cast<int64_t>(i) * row_bytes_);
  }

 private:
  void Copy(std::byte* to, const std::byte* from) const { std::memcpy(to, from, static_cast<size_t>(row_bytes_)); }

  std::byte* head_;
  std::span<const int64_t> slots_;
  int64_t row_bytes_;
  bool direct_;
  std::byte* scratch_;
};

void Move(const Rows& source, const Rows& target, size_t count, int64_t row_bytes) {
  const auto bytes = static_cast<size_t>(row_bytes);
  if (source.direct() && target.direct()) {
    std::memcpy(target.data(), source.data(), count * bytes);
    return;
  }
  for (size_t i = 0; i < count; ++i) std::memcpy(target.At(i), source.At(i), bytes);
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

// The phases that turn a row from its old position to its new one: [rows, half].
struct Turns {
  std::vector<float> cos;
  std::vector<float> sin;
};

Turns TurnsOf(const SlotPhase& from_phase, std::span<const int64_t> sources, const Phases& taken) {
  const int64_t half = from_phase.half;
  Turns turns{std::vector<float>(sources.size() * static_cast<size_t>(half)), {}};
  turns.sin.resize(turns.cos.size());
  for (size_t row = 0; row < sources.size(); ++row) {
    const int64_t own = sources[row] * half;
    for (int64_t i = 0; i < half; ++i) {
      const size_t at = row * static_cast<size_t>(half) + static_cast<size_t>(i);
      const Phase lost = InversePhase({from_phase.cos[own + i], from_phase.sin[own + i]});
      const double c = taken.cos[at];
      const double s = taken.sin[at];
      turns.cos[at] = static_cast<float>(c * lost.c - s * lost.s);
      turns.sin[at] = static_cast<float>(s * lost.c + c * lost.s);
    }
  }
  return turns;
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
  const Turns turns = TurnsOf(from_phase, sources, taken);
  const auto count = static_cast<int64_t>(sources.size());
  const int64_t chunks = (count + kChunkRows - 1) / kChunkRows;
  const Format format = FormatOf(from.dtype);
  const int64_t row_bytes = from.head_dim * FormatBytes(format);
  const int64_t heads = static_cast<int64_t>(from.layers) * from.kv_heads;
  ParallelFor(0, heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> in(static_cast<size_t>(kChunkRows * row_bytes));
    std::vector<std::byte> out(in.size());
    for (int64_t task = begin * chunks; task < end * chunks; ++task) {
      const int64_t head = task / chunks;
      const int64_t first = task % chunks * kChunkRows;
      const auto length = static_cast<size_t>(std::min(kChunkRows, count - first));
      const auto own_sources = sources.subspan(static_cast<size_t>(first), length);
      const auto own_targets = targets.subspan(static_cast<size_t>(first), length);
      const int64_t from_head = RowIndex(from, head / from.kv_heads, head % from.kv_heads, 0);
      const int64_t to_head = RowIndex(to, head / to.kv_heads, head % to.kv_heads, 0);
      for (const bool keys : {true, false}) {
        void* const from_base = keys ? from.k : from.v;
        void* const to_base = keys ? to.k : to.v;
        const Rows source(ElementAt(from_base, from.dtype, from_head), own_sources, row_bytes, in.data());
        const Rows target(ElementAt(to_base, to.dtype, to_head), own_targets, row_bytes, out.data());
        if (!keys || half == 0) {
          Move(source, target, length, row_bytes);
          continue;
        }
        source.Load();
        const SlabTask slab{{source.data(), row_bytes, format},
                            {target.data(), row_bytes, format},
                            static_cast<int64_t>(length),
                            from.head_dim,
                            {turns.cos.data() + first * half, turns.sin.data() + first * half, half,
                             static_cast<int32_t>(half), rope.pairing}};
        BestSlabKernels().turn(slab);
        target.Store();
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
