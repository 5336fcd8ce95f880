// The inner loops of this layer, each in the instruction sets that this CPU can run: all that costs time is here.
// A slab is one head's rows for a run of tokens, `dim` numbers each. Every loop reads a slab once, turns the rotated
// pairs and writes it in another format; the numbers in between are fp32 and stay in registers or in the L1 cache.
// All sets compute the bits of kv/element.h (of finite numbers; which NaN stays a NaN is not said).
#pragma once

#include <cstddef>
#include <cstdint>

#include "everlong/base/dtype.h"
#include "everlong/base/kernel_table.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// How a number is stored: an element type or an FP8 code.
enum class Format : uint8_t { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2 };

Format FormatOf(DType dtype);
Format FormatOf(Codec codec);
constexpr int64_t FormatBytes(Format format) {
  if (format == Format::kFloat32) return 4;
  return format == Format::kFloat16 || format == Format::kBFloat16 ? 2 : 1;
}

// Row t of a slab begins at data + t * stride; unaligned. Strides in bytes, of any sign.
struct SlabView {
  std::byte* data = nullptr;
  int64_t stride = 0;
  Format format = Format::kFloat32;
};
struct ConstSlabView {
  const std::byte* data = nullptr;
  int64_t stride = 0;
  Format format = Format::kFloat32;
  // A slab of the same strides that will be read soon: fetched into the cache on the way. nullptr: none.
  const std::byte* next = nullptr;
};

// The rotation of a slab's rows: row t by cos, sin [t * stride, t * stride + half); m included. half 0: none.
struct SlabRotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t stride = 0;  // half, or 0: one phase for all rows
  int32_t half = 0;
  Pairing pairing = Pairing::kHalfSplit;
};

struct SlabTask {
  ConstSlabView in;
  SlabView out;
  int64_t tokens = 0;
  int32_t dim = 0;
  SlabRotation rotation;  // elements from 2 * half on stay as they are
  // Nobody reads the output soon: it is written past the caches where its rows are lines of them. Whoever lets another
  // thread read it calls FenceStreams() (stream_copy.h) first.
  bool streamed = false;
};

// Scales are fp32 and unaligned; scratch [ScratchFloats(task)]. "Largest": of the MagnitudeBits (kv/element.h) of all
// numbers, rotated and not yet rounded; kFloatInfinityBits and above says that one is not finite, and then codes and
// scales are unspecified.
struct SlabKernels {
  const char* name;
  bool streams;  // whether any of them heeds SlabTask::streamed; encode_channels never does
  // Between element types. `out` may be `in`; or overlap it where no row of `out` is a row of `in` still to be read.
  // Returns the largest.
  uint32_t (*turn)(const SlabTask& task);
  // Into FP8 with a scale a channel, scales [dim]; or a scale a token, [tokens], and no rotation. Return the largest.
  uint32_t (*encode_channels)(const SlabTask& task, std::byte* scales, float* scratch);
  uint32_t (*encode_tokens)(const SlabTask& task, std::byte* scales, float* scratch);
  // Out of FP8: value = code * scale, then rotated by finite phases; and with a scale a token, not rotated.
  void (*decode_channels)(const SlabTask& task, const std::byte* scales, float* scratch);
  void (*decode_tokens)(const SlabTask& task, const std::byte* scales);
};

constexpr int64_t ScratchFloats(const SlabTask& task) { return 64 * task.tokens + task.dim; }

const KernelTable<SlabKernels>& SupportedSlabKernels();
inline const SlabKernels& BestSlabKernels() { return SupportedSlabKernels().kernels[0]; }

}  // namespace everlong::kv
