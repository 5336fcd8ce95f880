#include "everlong/kv/archive.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/parallel_for.h"
#include "everlong/kv/element.h"
#include "frame_rows.h"
#include "page_codec.h"
#include "slab.h"

namespace everlong::kv {
namespace {

constexpr int64_t kNoTask = std::numeric_limits<int64_t>::max();
// Elements that are worth a thread's while.
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
        phase_(phase),
        pairing_(pairing),
        first_slot_(first_slot),
        tokens_(tokens),
        layout_(layout),
        payload_(payload) {}

  Status Run() const {
    const int64_t tasks = layout_.PageCount(tokens_) * layout_.layers * layout_.kv_heads;
    std::atomic<int64_t> first_rejected{kNoTask};
    ParallelFor(0, tasks, Grain(layout_), [&](int64_t begin, int64_t end) {
      std::vector<float> slab(static_cast<size_t>(layout_.page_tokens) * static_cast<size_t>(layout_.head_dim));
      for (int64_t task = begin; task < end; ++task) {
        if (Archive(TaskAt(task), slab.data())) continue;
        int64_t seen = first_rejected.load(std::memory_order_relaxed);
        while (task < seen && !first_rejected.compare_exchange_weak(seen, task, std::memory_order_relaxed)) {
        }
        return;
      }
    });
    const int64_t rejected = first_rejected.load(std::memory_order_relaxed);
    return rejected == kNoTask ? OkStatus() : Rejected(TaskAt(rejected));
  }

 private:
  [[nodiscard]] HeadPage TaskAt(int64_t task) const {
    const int64_t head = task % layout_.kv_heads;
    const int64_t layer = task / layout_.kv_heads % layout_.layers;
    return {layer, head, task / layout_.kv_heads / layout_.layers};
  }

  [[nodiscard]] slab::Shape ShapeOf(const HeadPage& at) const {
    return {layout_.PageTokens(tokens_, at.page), layout_.head_dim};
  }

  // Un-rotated keys and the values of one head of one page, [T, D] fp32.
  void LoadKeys(const HeadPage& at, float* keys) const {
    const int64_t slot = first_slot_ + at.page * layout_.page_tokens;
    slab::Widen(ElementAt(frame_.k, frame_.dtype, RowIndex(frame_, at.layer, at.head, slot)), frame_.dtype,
                ShapeOf(at).size(), keys);
    slab::Unrotate(keys, ShapeOf(at), phase_.cos + slot * phase_.half, phase_.sin + slot * phase_.half, phase_.half,
                   pairing_);
  }
  void LoadValues(const HeadPage& at, float* values) const {
    const int64_t slot = first_slot_ + at.page * layout_.page_tokens;
    slab::Widen(ElementAt(frame_.v, frame_.dtype, RowIndex(frame_, at.layer, at.head, slot)), frame_.dtype,
                ShapeOf(at).size(), values);
  }

  // false when a value does not survive the codec.
  bool Archive(const HeadPage& at, float* slab) const {
    const auto tokens = static_cast<int32_t>(ShapeOf(at).tokens);
    std::byte* part =
        payload_.data() + at.page * layout_.PageBytes(layout_.page_tokens) + at.layer * layout_.PartBytes(tokens);
    LoadKeys(at, slab);
    if (slab::LargestMagnitudeBits(slab, ShapeOf(at).size()) >= RejectedBits(layout_.codec)) return false;
    EncodeHeadKeys(slab, layout_, tokens, static_cast<int32_t>(at.head), part);
    LoadValues(at, slab);
    if (slab::LargestMagnitudeBits(slab, ShapeOf(at).size()) >= RejectedBits(layout_.codec)) return false;
    EncodeHeadValues(slab, layout_, tokens, static_cast<int32_t>(at.head), part);
    return true;
  }

  // Finds and names what Archive rejected.
  [[nodiscard]] Status Rejected(const HeadPage& at) const {
    std::vector<float> slab(static_cast<size_t>(ShapeOf(at).size()));
    const uint32_t limit = RejectedBits(layout_.codec);
    const auto rejected = [limit](float value) { return MagnitudeBits(value) >= limit; };
    bool is_key = true;
    LoadKeys(at, slab.data());
    auto found = std::find_if(slab.begin(), slab.end(), rejected);
    if (found == slab.end()) {
      is_key = false;
      LoadValues(at, slab.data());
      found = std::find_if(slab.begin(), slab.end(), rejected);
    }
    EVERLONG_CHECK(found != slab.end());
    const int64_t token = at.page * layout_.page_tokens + (found - slab.begin()) / layout_.head_dim;
    return RejectedNumberError({is_key, at.layer, at.head, token, *found}, first_slot_, layout_.codec);
  }

  const FrameKv& frame_;
  const SlotPhase& phase_;
  Pairing pairing_;
  int64_t first_slot_;
  int64_t tokens_;
  const PayloadLayout& layout_;
  std::span<std::byte> payload_;
};

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
  return RequireRange((name + ", slots").c_str(), place.slot, place.tokens, slots);
}

}  // namespace

Status RejectedNumberError(const RejectedNumber& number, int64_t first_slot, Codec codec) {
  return InvalidArgumentError("un-rotated " + std::string(number.is_key ? "key" : "value") + " of layer " +
                              std::to_string(number.layer) + ", head " + std::to_string(number.head) + ", token " +
                              std::to_string(number.token) + " of the span (slot " +
                              std::to_string(first_slot + number.token) + ") is " + std::to_string(number.value) +
                              "; expected a finite number that codec " + std::string(CodecName(codec)) + " holds");
}

Status Validate(std::span<const PagePlacement> placements, int64_t payload_bytes, const PayloadLayout& layout,
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

Status ArchiveSpan(const FrameKv& frame, const SlotPhase& phase, Pairing pairing, int64_t first_slot, int64_t tokens,
                   const PayloadLayout& layout, std::span<std::byte> payload) {
  EVERLONG_RETURN_IF_ERROR(ValidateShapes(frame, phase, layout));
  EVERLONG_RETURN_IF_ERROR(RequireRange("span to archive", first_slot, tokens, frame.slots));
  if (static_cast<int64_t>(payload.size()) != layout.BlockBytes(tokens)) {
    return InvalidArgumentError("payload has " + std::to_string(payload.size()) + " bytes; expected " +
                                std::to_string(layout.BlockBytes(tokens)) + " for " + std::to_string(tokens) +
                                " tokens");
  }
  return SpanArchiver(frame, phase, pairing, first_slot, tokens, layout, payload).Run();
}

Status RestorePages(std::span<const std::byte> payload, std::span<const PagePlacement> placements,
                    const PayloadLayout& layout, const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase) {
  EVERLONG_RETURN_IF_ERROR(ValidateShapes(frame, phase, layout));
  EVERLONG_RETURN_IF_ERROR(Validate(rope, layout.head_dim));
  if (static_cast<size_t>(phase.half) != rope.inv_freq.size()) {
    return InvalidArgumentError("phase: rotary_dim / 2 is " + std::to_string(phase.half) + "; expected inv_freq's " +
                                std::to_string(rope.inv_freq.size()));
  }
  EVERLONG_RETURN_IF_ERROR(Validate(placements, static_cast<int64_t>(payload.size()), layout, frame.slots));

  // Phases first, once a position: every layer and head then reads them.
  const auto half = static_cast<size_t>(phase.half);
  ParallelFor(0, static_cast<int64_t>(placements.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PagePlacement& place = placements[static_cast<size_t>(i)];
      for (int64_t t = 0; t < place.tokens; ++t) {
        const int64_t row = (place.slot + t) * phase.half;
        rope.CosSin(place.position + t, {phase.cos + row, half}, {phase.sin + row, half});
      }
    }
  });

  const int64_t tasks = static_cast<int64_t>(placements.size()) * layout.layers * layout.kv_heads;
  ParallelFor(0, tasks, Grain(layout), [&](int64_t begin, int64_t end) {
    std::vector<float> slab(static_cast<size_t>(layout.page_tokens) * static_cast<size_t>(layout.head_dim));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task % layout.kv_heads;
      const int64_t layer = task / layout.kv_heads % layout.layers;
      const PagePlacement& place = placements[static_cast<size_t>(task / layout.kv_heads / layout.layers)];
      if (place.tokens == 0) continue;
      const std::byte* part = payload.data() + place.byte_offset + layer * layout.PartBytes(place.page_tokens);
      const PartRows rows{place.page_tokens, static_cast<int32_t>(head), place.first_token, place.tokens};
      const slab::Shape shape{place.tokens, layout.head_dim};
      const int64_t row = RowIndex(frame, layer, head, place.slot);
      DecodeHeadKeys(part, layout, rows, slab.data());
      slab::Rotate(slab.data(), shape, phase.cos + place.slot * phase.half, phase.sin + place.slot * phase.half,
                   phase.half, rope.pairing);
      slab::Narrow(slab.data(), frame.dtype, shape.size(), ElementAt(frame.k, frame.dtype, row));
      DecodeHeadValues(part, layout, rows, slab.data());
      slab::Narrow(slab.data(), frame.dtype, shape.size(), ElementAt(frame.v, frame.dtype, row));
    }
  });
  return OkStatus();
}

void DecodeKeys(std::span<const std::byte> part, int32_t tokens, int32_t head, const PayloadLayout& layout,
                std::span<float> keys) {
  EVERLONG_CHECK(tokens > 0 && tokens <= layout.page_tokens && head >= 0 && head < layout.kv_heads);
  EVERLONG_CHECK(static_cast<int64_t>(part.size()) == layout.PartBytes(tokens));
  EVERLONG_CHECK(static_cast<int64_t>(keys.size()) == static_cast<int64_t>(tokens) * layout.head_dim);
  DecodeHeadKeys(part.data(), layout, {tokens, head, 0, tokens}, keys.data());
}

}  // namespace everlong::kv
