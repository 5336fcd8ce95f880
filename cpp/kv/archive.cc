#include "everlong/kv/archive.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/base/check.h"
#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"
#include "frame_rows.h"
#include "phases.h"
#include "slab_kernels.h"
#include "stream_copy.h"

namespace everlong::kv {
namespace {

constexpr int64_t kNoTask = std::numeric_limits<int64_t>::max();
// Fewer elements are not worth a thread.
constexpr int64_t kGrainElements = 16384;

int64_t Grain(const PayloadLayout& layout) {
  return std::max<int64_t>(1, kGrainElements / (static_cast<int64_t>(layout.page_tokens) * layout.head_dim));
}

Status ValidateShapes(const FrameKv& frame, const SlotPhase& phase, const PayloadLayout& layout) {
  EVERLONG_RETURN_IF_ERROR(Validate(layout));
  EVERLONG_RETURN_IF_ERROR(Validate(frame, phase));
  if (frame.layers == layout.layers && frame.kv_heads == layout.kv_heads && frame.head_dim == layout.head_dim) {
    return OkStatus();
  }
  return InvalidArgumentError("frame: [layers, kv_heads, head_dim] is [" + std::to_string(frame.layers) + ", " +
                              std::to_string(frame.kv_heads) + ", " + std::to_string(frame.head_dim) +
                              "]; expected the payload layout's [" + std::to_string(layout.layers) + ", " +
                              std::to_string(layout.kv_heads) + ", " + std::to_string(layout.head_dim) + "]");
}

PartLayout PartOf(const PayloadLayout& layout, int32_t tokens) {
  return {layout.codec, layout.kv_heads, layout.head_dim, tokens};
}

// Do tasks [0, tasks) in parallel: does(task, end of the thread's own) returns false to refuse one, and ends its
// thread's work. Every thread calls `done` last. Return the first that was refused; kNoTask: none.
template <class Does, class Done>
int64_t FirstRefused(int64_t tasks, int64_t grain, const Does& does, const Done& done) {
  std::atomic<int64_t> first{kNoTask};
  ParallelFor(0, tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      if (does(task, end)) continue;
      int64_t seen = first.load(std::memory_order_relaxed);
      while (task < seen && !first.compare_exchange_weak(seen, task, std::memory_order_relaxed)) {
      }
      break;
    }
    done();
  });
  return first.load(std::memory_order_relaxed);
}

// Return the thread's working buffer for the kernels. It grows to the size that the largest page needs.
float* Scratch(const SlabTask& task) {
  thread_local CacheLineVector<float> scratch;
  const auto wanted = static_cast<size_t>(ScratchFloats(task));
  if (scratch.size() < wanted) scratch.resize(wanted);
  return scratch.data();
}

// Codes of fewer than 8 bits are packed to rows of bits. Kernels know codes of whole bytes only.
constexpr bool IsPacked(int32_t bits) { return bits < 8; }

// Return the thread's buffer for what kernels write or read beside the payload.
std::byte* Beside(int64_t bytes) {
  thread_local CacheLineVector<std::byte> beside;
  if (std::ssize(beside) < bytes) beside.resize(static_cast<size_t>(bytes));
  return beside.data();
}

// The target of a kernel for the codes of one slab: in place; or staged beside it, until they are packed or streamed.
class SlabWriter {
 public:
  SlabWriter(std::byte* place, int64_t tokens, int32_t dim, int32_t bits, bool staged)
      : place_(place),
        tokens_(tokens),
        dim_(dim),
        bits_(bits),
        beside_(staged || IsPacked(bits) ? Beside(tokens * Stride()) : nullptr) {}
  // Return where the kernel writes.
  [[nodiscard]] SlabView View(Format format) const { return {beside_ != nullptr ? beside_ : place_, Stride(), format}; }
  void Finish() const {
    if (IsPacked(bits_)) {
      BestSlabKernels().pack(beside_, tokens_, dim_, bits_, place_);
    } else if (beside_ != nullptr) {
      StreamCopy(beside_, place_, tokens_ * Stride());
    }
  }

 private:
  [[nodiscard]] int64_t Stride() const { return PackedBytes(dim_, std::max(bits_, 8)); }

  std::byte* place_;
  int64_t tokens_;
  int32_t dim_;
  int32_t bits_;
  std::byte* beside_;
};

// One head of one page of the span: what a thread archives at a time.
struct HeadPage {
  int64_t layer = 0;
  int64_t head = 0;
  int64_t page = 0;
};

class SpanArchiver {
 public:
  SpanArchiver(const FrameKv& frame, const SlotPhase& phase, Pairing pairing, int64_t first_slot, int64_t tokens,
               const PayloadLayout& layout, std::span<std::byte> payload)
      : frame_(frame),
        pairing_(pairing),
        first_slot_(first_slot),
        tokens_(tokens),
        layout_(layout),
        payload_(payload),
        half_(phase.half),
        streamed_(static_cast<int64_t>(payload.size()) >= kStreamedPayloadBytes),
        inverse_(InversePhases(phase.cos + first_slot * phase.half, phase.sin + first_slot * phase.half,
                               tokens * phase.half)) {}

  Status Run() const {
    const int64_t tasks = layout_.PageCount(tokens_) * layout_.layers * layout_.kv_heads;
    const int64_t rejected = FirstRefused(
        tasks, Grain(layout_),
        [this](int64_t task, int64_t end) { return Archive(TaskAt(task), TaskAt(std::min(task + 1, end - 1))); },
        [this] {
          if (streamed_) FenceStreams();
        });
    return rejected == kNoTask ? OkStatus() : Rejected(TaskAt(rejected));
  }

 private:
  [[nodiscard]] HeadPage TaskAt(int64_t task) const {
    const int64_t head = task % layout_.kv_heads;
    const int64_t layer = task / layout_.kv_heads % layout_.layers;
    return {layer, head, task / layout_.kv_heads / layout_.layers};
  }

  // Return the rows of one head of one page in one of the frame's buffers.
  [[nodiscard]] const std::byte* RowsAt(const HeadPage& at, const void* buffer) const {
    const int64_t slot = first_slot_ + at.page * layout_.page_tokens;
    return ElementAt(buffer, frame_.dtype, RowIndex(frame_, at.layer, at.head, slot));
  }

  // Return the task that copies them to `out`; `next` are the rows to read after them.
  [[nodiscard]] SlabTask TaskOf(const HeadPage& at, const void* buffer, const std::byte* next, SlabView out) const {
    const Format format = FormatOf(frame_.dtype);
    SlabTask task;
    task.in = {RowsAt(at, buffer), frame_.head_dim * FormatBytes(format), format, next};
    task.out = out;
    task.tokens = layout_.PageTokens(tokens_, at.page);
    task.dim = layout_.head_dim;
    task.streamed = streamed_;
    return task;
  }
  [[nodiscard]] SlabTask KeysTask(const HeadPage& at, const std::byte* next, SlabView out) const {
    SlabTask task = TaskOf(at, frame_.k, next, out);
    const int64_t first = at.page * layout_.page_tokens * half_;
    task.rotation = {inverse_.cos.data() + first, inverse_.sin.data() + first, half_, half_, pairing_};
    return task;
  }

  // Return false when the codec cannot hold a value. `next` is what this thread archives afterwards.
  [[nodiscard]] bool Archive(const HeadPage& at, const HeadPage& next) const {
    const int32_t tokens = layout_.PageTokens(tokens_, at.page);
    std::byte* part =
        payload_.data() + at.page * layout_.PageBytes(layout_.page_tokens) + at.layer * layout_.PartBytes(tokens);
    const PartLayout places = PartOf(layout_, tokens);
    const Format format = FormatOf(layout_.codec);
    const CodecForm form = FormOf(layout_.codec);
    const SlabKernels& kernels = BestSlabKernels();
    const bool scaled = HasScales(layout_.codec);

    const bool staged = streamed_ && !kernels.streams;

    const SlabWriter k_codes(part + places.KCodes(at.head), tokens, layout_.head_dim, form.key_bits,
                             staged || (streamed_ && scaled));
    SlabTask keys = KeysTask(at, RowsAt(at, frame_.v), k_codes.View(format));
    keys.bits = form.key_bits;
    std::byte* const centres = form.centred ? part + places.KCentres(at.head) : nullptr;
    const uint32_t largest_key =
        scaled ? kernels.encode_channels(keys, part + places.KScales(at.head), centres, Scratch(keys))
               : kernels.turn(keys);
    k_codes.Finish();

    const SlabWriter v_codes(part + places.VCodes(at.head), tokens, layout_.head_dim, form.value_bits, staged);
    SlabTask values = TaskOf(at, frame_.v, RowsAt(next, frame_.k), v_codes.View(format));
    values.bits = form.value_bits;
    const uint32_t largest_value =
        scaled ? kernels.encode_tokens(values, part + places.VScales(at.head), Scratch(values)) : kernels.turn(values);
    v_codes.Finish();
    return std::max(largest_key, largest_value) < RejectedBits(layout_.codec);
  }

  // Find and name what Archive rejected.
  [[nodiscard]] Status Rejected(const HeadPage& at) const {
    std::vector<float> slab(static_cast<size_t>(layout_.PageTokens(tokens_, at.page)) *
                            static_cast<size_t>(layout_.head_dim));
    const SlabView rows{reinterpret_cast<std::byte*>(slab.data()),
                        layout_.head_dim * static_cast<int64_t>(sizeof(float)), Format::kFloat32};
    const uint32_t limit = RejectedBits(layout_.codec);
    const auto rejected = [limit](float value) { return MagnitudeBits(value) >= limit; };
    bool is_key = true;
    BestSlabKernels().turn(KeysTask(at, nullptr, rows));
    auto found = std::find_if(slab.begin(), slab.end(), rejected);
    if (found == slab.end()) {
      is_key = false;
      BestSlabKernels().turn(TaskOf(at, frame_.v, nullptr, rows));
      found = std::find_if(slab.begin(), slab.end(), rejected);
    }
    EVERLONG_CHECK(found != slab.end());
    const int64_t token = at.page * layout_.page_tokens + (found - slab.begin()) / layout_.head_dim;
    return RejectedNumberError({is_key, at.layer, at.head, token, *found}, first_slot_, layout_.codec);
  }

  const FrameKv& frame_;
  Pairing pairing_;
  int64_t first_slot_;
  int64_t tokens_;
  const PayloadLayout& layout_;
  std::span<std::byte> payload_;
  int32_t half_;
  bool streamed_;
  Phases inverse_;  // of the span's slots
};

// One head of a part to read from.
struct HeadPart {
  const std::byte* part;
  const PayloadLayout& layout;
  int32_t page_tokens;
  int32_t head;

  [[nodiscard]] const std::byte* KeysAt(int32_t first) const {
    return part + Places().KCodes(head) + first * Places().KRow();
  }
  [[nodiscard]] const std::byte* ValuesAt(int32_t first) const {
    return part + Places().VCodes(head) + first * Places().VRow();
  }

  // Decode tokens [first, first + tokens), keys rotated, to `out`. `next` are the rows to read after the values.
  void DecodeKeys(int32_t first, int32_t tokens, const SlabRotation& rotation, SlabView out, bool streamed) const {
    const int32_t bits = FormOf(layout.codec).key_bits;
    const SlabTask task{
        In(KeysAt(first), tokens, bits, ValuesAt(first)), out, tokens, layout.head_dim, rotation, streamed, bits};
    if (HasScales(layout.codec)) {
      const std::byte* const centres = FormOf(layout.codec).centred ? part + Places().KCentres(head) : nullptr;
      BestSlabKernels().decode_channels(task, part + Places().KScales(head), centres, Scratch(task));
    } else {
      BestSlabKernels().turn(task);
    }
  }
  void DecodeValues(int32_t first, int32_t tokens, const std::byte* next, SlabView out, bool streamed) const {
    const int32_t bits = FormOf(layout.codec).value_bits;
    const SlabTask task{In(ValuesAt(first), tokens, bits, next), out, tokens, layout.head_dim, {}, streamed, bits};
    if (HasScales(layout.codec)) {
      BestSlabKernels().decode_tokens(task, ValueScalesAt(first));
    } else {
      BestSlabKernels().turn(task);
    }
  }

  // Return whether the scales and centres are numbers that the codec writes, as far as these tokens use them.
  [[nodiscard]] bool HasTables(int32_t first, int32_t tokens) const {
    if (!HasScales(layout.codec)) return true;
    const bool steps = HasSteps(layout.codec);
    const auto are_scales = [steps](const std::byte* scales, int64_t count) {
      bool all = true;
      for (int64_t i = 0; i < count; ++i) {
        uint32_t scale;
        std::memcpy(&scale, scales + 4 * i, 4);
        all &= steps ? IsStepsTable(scale) : scale < kFloatInfinityBits;
      }
      return all;
    };
    bool all = are_scales(part + Places().KScales(head), layout.head_dim) &&
               are_scales(ValueScalesAt(first), int64_t{tokens} * Places().VGroups());
    for (int32_t d = 0; FormOf(layout.codec).centred && d < layout.head_dim; ++d) {
      uint16_t centre;
      std::memcpy(&centre, part + Places().KCentres(head) + 2 * int64_t{d}, 2);
      all &= MagnitudeBits(BFloat16ToFloat(centre)) < kFloatInfinityBits;
    }
    return all;
  }

 private:
  [[nodiscard]] PartLayout Places() const { return PartOf(layout, page_tokens); }
  [[nodiscard]] const std::byte* ValueScalesAt(int32_t first) const {
    return part + Places().VScales(head) + static_cast<int64_t>(sizeof(float)) * first * Places().VGroups();
  }
  // Return rows that a kernel reads. `next` has rows of the same length.
  [[nodiscard]] ConstSlabView In(const std::byte* rows, int32_t tokens, int32_t bits, const std::byte* next) const {
    const Format format = FormatOf(layout.codec);
    const int64_t stride = layout.head_dim * FormatBytes(format);
    const bool alike = FormOf(layout.codec).key_bits == FormOf(layout.codec).value_bits;
    if (!IsPacked(bits)) return {rows, stride, format, alike ? next : nullptr};
    std::byte* const codes = Beside(tokens * stride);
    BestSlabKernels().unpack(rows, tokens, layout.head_dim, bits, codes);
    return {codes, stride, format, nullptr};
  }
};

Status DamagedTables(int32_t head, int64_t layer, const PagePlacement& place, const PayloadLayout& layout) {
  return CorruptError("payload, page at byte " + std::to_string(place.byte_offset) + ", layer " +
                      std::to_string(layer) + ", head " + std::to_string(head) +
                      ": a scale or a centre is not one that codec " + std::string(CodecName(layout.codec)) +
                      " writes; expected the bytes that were archived, so the payload is damaged or of another codec");
}

Status ValidatePlacement(const PagePlacement& place, const std::string& name, int64_t payload_bytes,
                         const PayloadLayout& layout, int64_t slots) {
  if (place.page_tokens < 1 || place.page_tokens > layout.page_tokens) {
    return InvalidArgumentError(name + ": page_tokens is " + std::to_string(place.page_tokens) + "; expected 1 to " +
                                std::to_string(layout.page_tokens));
  }
  EVERLONG_RETURN_IF_ERROR(RequireRange((name + ", bytes of the page in the payload").c_str(), place.byte_offset,
                                        layout.PageBytes(place.page_tokens), payload_bytes));
  EVERLONG_RETURN_IF_ERROR(
      RequireRange((name + ", tokens of the page").c_str(), place.first_token, place.tokens, place.page_tokens));
  EVERLONG_RETURN_IF_ERROR(RequireRange((name + ", positions").c_str(), place.position, place.tokens, kPositionLimit));
  return RequireRange((name + ", slots").c_str(), place.slot, place.tokens, slots);
}

Status ValidatePlacements(std::span<const PagePlacement> placements, int64_t payload_bytes, const PayloadLayout& layout,
                          int64_t slots) {
  for (size_t i = 0; i < placements.size(); ++i) {
    EVERLONG_RETURN_IF_ERROR(
        ValidatePlacement(placements[i], "placement " + std::to_string(i), payload_bytes, layout, slots));
  }
  std::vector<size_t> by_slot;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].tokens > 0) by_slot.push_back(i);
  }
  std::sort(by_slot.begin(), by_slot.end(),
            [&](size_t a, size_t b) { return placements[a].slot < placements[b].slot; });
  for (size_t i = 1; i < by_slot.size(); ++i) {
    const PagePlacement& before = placements[by_slot[i - 1]];
    if (before.slot + before.tokens > placements[by_slot[i]].slot) {
      return InvalidArgumentError("placements " + std::to_string(by_slot[i - 1]) + " and " +
                                  std::to_string(by_slot[i]) + " overlap at slot " +
                                  std::to_string(placements[by_slot[i]].slot) + "; expected disjoint slots");
    }
  }
  return OkStatus();
}

}  // namespace

Status RejectedNumberError(const RejectedNumber& number, int64_t first_slot, Codec codec) {
  // The sign of a NaN differs between devices.
  const std::string value = std::isnan(number.value) ? "nan" : std::to_string(number.value);
  return InvalidArgumentError("un-rotated " + std::string(number.is_key ? "key" : "value") + " of layer " +
                              std::to_string(number.layer) + ", head " + std::to_string(number.head) + ", token " +
                              std::to_string(number.token) + " of the span (slot " +
                              std::to_string(first_slot + number.token) + ") is " + value +
                              "; expected a finite number that codec " + std::string(CodecName(codec)) + " holds");
}

Status ValidateArchive(const FrameKv& frame, const SlotPhase& phase, int64_t first_slot, int64_t tokens,
                       const PayloadLayout& layout) {
  EVERLONG_RETURN_IF_ERROR(ValidateShapes(frame, phase, layout));
  return RequireRange("span to archive", first_slot, tokens, frame.slots);
}

Status ArchiveSpan(const FrameKv& frame, const SlotPhase& phase, Pairing pairing, int64_t first_slot, int64_t tokens,
                   const PayloadLayout& layout, std::span<std::byte> payload) {
  EVERLONG_RETURN_IF_ERROR(ValidateArchive(frame, phase, first_slot, tokens, layout));
  if (static_cast<int64_t>(payload.size()) != layout.BlockBytes(tokens)) {
    return InvalidArgumentError("payload has " + std::to_string(payload.size()) + " bytes; expected " +
                                std::to_string(layout.BlockBytes(tokens)) + " for " + std::to_string(tokens) +
                                " tokens");
  }
  return SpanArchiver(frame, phase, pairing, first_slot, tokens, layout, payload).Run();
}

Status ValidateRestore(int64_t payload_bytes, std::span<const PagePlacement> placements, const PayloadLayout& layout,
                       const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase) {
  EVERLONG_RETURN_IF_ERROR(ValidateShapes(frame, phase, layout));
  EVERLONG_RETURN_IF_ERROR(Validate(rope, layout.head_dim));
  if (static_cast<size_t>(phase.half) != rope.inv_freq.size()) {
    return InvalidArgumentError("phase: rotary_dim / 2 is " + std::to_string(phase.half) + "; expected inv_freq's " +
                                std::to_string(rope.inv_freq.size()));
  }
  return ValidatePlacements(placements, payload_bytes, layout, frame.slots);
}

Status RestorePages(std::span<const std::byte> payload, std::span<const PagePlacement> placements,
                    const PayloadLayout& layout, const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase) {
  EVERLONG_RETURN_IF_ERROR(
      ValidateRestore(static_cast<int64_t>(payload.size()), placements, layout, rope, frame, phase));

  // Work goes head by head of a part: `task` counts them over all layers and placements.
  const auto place_of = [&](int64_t task) -> const PagePlacement& {
    return placements[static_cast<size_t>(task / layout.kv_heads / layout.layers)];
  };
  const auto layer_of = [&](int64_t task) { return task / layout.kv_heads % layout.layers; };
  const auto source_of = [&](int64_t task) -> HeadPart {
    const PagePlacement& place = place_of(task);
    return {payload.data() + place.byte_offset + layer_of(task) * layout.PartBytes(place.page_tokens), layout,
            place.page_tokens, static_cast<int32_t>(task % layout.kv_heads)};
  };
  const int64_t tasks = static_cast<int64_t>(placements.size()) * layout.layers * layout.kv_heads;
  const int64_t damaged = FirstRefused(
      tasks, Grain(layout),
      [&](int64_t task, int64_t) {
        return source_of(task).HasTables(place_of(task).first_token, place_of(task).tokens);
      },
      [] {});
  if (damaged != kNoTask) return DamagedTables(source_of(damaged).head, layer_of(damaged), place_of(damaged), layout);

  // Phases come first, once a position. Every layer and head then reads them.
  const PhaseWriter phases(rope);
  ParallelFor(0, static_cast<int64_t>(placements.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PagePlacement& place = placements[static_cast<size_t>(i)];
      const int64_t row = place.slot * phase.half;
      phases.Write(place.position, place.tokens, phase.cos + row, phase.sin + row);
    }
  });

  const Format format = FormatOf(frame.dtype);
  const int64_t stride = frame.head_dim * FormatBytes(format);
  int64_t tokens = 0;
  for (const PagePlacement& place : placements) tokens += place.tokens;
  const bool streamed = 2 * tokens * layout.layers * layout.kv_heads * stride >= kStreamedFrameBytes;

  ParallelFor(0, tasks, Grain(layout), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const PagePlacement& place = place_of(task);
      const HeadPart from = source_of(task);
      const int64_t next = std::min(task + 1, end - 1);
      const int64_t row = RowIndex(frame, layer_of(task), from.head, place.slot);
      const SlabRotation rotation{phase.cos + place.slot * phase.half, phase.sin + place.slot * phase.half, phase.half,
                                  phase.half, rope.pairing};
      from.DecodeKeys(place.first_token, place.tokens, rotation, {ElementAt(frame.k, frame.dtype, row), stride, format},
                      streamed);
      from.DecodeValues(place.first_token, place.tokens, source_of(next).KeysAt(place_of(next).first_token),
                        {ElementAt(frame.v, frame.dtype, row), stride, format}, streamed);
    }
    if (streamed) FenceStreams();
  });
  return OkStatus();
}

void DecodeKeys(std::span<const std::byte> part, int32_t tokens, int32_t head, const PayloadLayout& layout,
                std::span<float> keys) {
  EVERLONG_CHECK(tokens > 0 && tokens <= layout.page_tokens && head >= 0 && head < layout.kv_heads);
  EVERLONG_CHECK(static_cast<int64_t>(part.size()) == layout.PartBytes(tokens));
  EVERLONG_CHECK(static_cast<int64_t>(keys.size()) == static_cast<int64_t>(tokens) * layout.head_dim);
  HeadPart{part.data(), layout, tokens, head}.DecodeKeys(
      0, tokens, {}, {reinterpret_cast<std::byte*>(keys.data()), layout.head_dim * 4, Format::kFloat32}, false);
}

}  // namespace everlong::kv
