// The inner loops of the kv layer, in every instruction set that this CPU can run. All that takes time is here. A slab
// is one head's rows for a run of tokens, `dim` numbers each. Every loop reads a slab once, turns the rotated pairs and
// writes it in another format. In between, numbers are fp32 in registers or in the L1 cache. All instruction sets
// compute the bits of base/element.h for finite numbers. A NaN stays some NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "everlong/base/dtype.h"
#include "everlong/base/kernel_table.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// How a number is stored: an element type, an FP8 code, or a code of steps (base/element.h) in a byte of its own.
enum class Format : uint8_t { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2, kSteps };

Format FormatOf(DType dtype);
Format FormatOf(Codec codec);
constexpr int64_t FormatBytes(Format format) {
  if (format == Format::kFloat32) return 4;
  return format == Format::kFloat16 || format == Format::kBFloat16 ? 2 : 1;
}

// Row t of a slab begins at data + t * stride, unaligned. Strides are in bytes and may be negative.
struct SlabView {
  std::byte* data = nullptr;
  int64_t stride = 0;
  Format format = Format::kFloat32;
};
struct ConstSlabView {
  const std::byte* data = nullptr;
  int64_t stride = 0;
  Format format = Format::kFloat32;
  // A slab of the same strides that is read soon, to be prefetched. nullptr: none.
  const std::byte* next = nullptr;
};

// The rotation of a slab's rows: row t by cos, sin [t * stride, t * stride + half), with m. half 0: no rotation.
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
  SlabRotation rotation;  // elements from 2 * half stay as they are
  // Set it where nobody reads the output soon. The output is then written past the caches if its rows are cache lines.
  // Call FenceStreams() (stream_copy.h) before another thread reads it.
  bool streamed = false;
  int32_t bits = 8;  // of a code of steps
};

// Scales are fp32, or StepsTable (base/element.h) for codes of steps. Centres are bfloat16; without centres (nullptr),
// FP8 codes are plain. All are unaligned; scratch [ScratchFloats(task)]. "The largest" is that of the MagnitudeBits
// (base/element.h) of all numbers, after the rotation and before the rounding. From kFloatInfinityBits it says that a
// number is not finite; codes and scales are then unspecified.
struct SlabKernels {
  const char* name;
  bool streams;  // whether any of them uses SlabTask::streamed; encode_channels never does
  // Copy between element types. `out` may be `in`, or overlap it where no row of `in` is still to be read. Returns the
  // largest.
  uint32_t (*turn)(const SlabTask& task);
  // Encode with a scale and a centre a channel, [dim]; or without rotation, with a scale a token, [tokens]. Steps have
  // one every kStepsGroup numbers of a token instead: [tokens, groups]. Both return the largest.
  uint32_t (*encode_channels)(const SlabTask& task, std::byte* scales, std::byte* centres, float* scratch);
  uint32_t (*encode_tokens)(const SlabTask& task, std::byte* scales, float* scratch);
  // Decode what these encode. Channels are then rotated, by finite phases. No number of a token that float16 holds is
  // decoded to an infinity.
  void (*decode_channels)(const SlabTask& task, const std::byte* scales, const std::byte* centres, float* scratch);
  void (*decode_tokens)(const SlabTask& task, const std::byte* scales);
  // Pack codes [tokens, dim], a byte each, to rows of PackedBytes(dim, bits), and unpack them; bits 4, 5 or 6.
  void (*pack)(const std::byte* codes, int64_t tokens, int32_t dim, int32_t bits, std::byte* rows);
  void (*unpack)(const std::byte* rows, int64_t tokens, int32_t dim, int32_t bits, std::byte* codes);
};

constexpr int64_t ScratchFloats(const SlabTask& task) { return 64 * task.tokens + 2 * int64_t{task.dim}; }

const KernelTable<SlabKernels>& SupportedSlabKernels();
inline const SlabKernels& BestSlabKernels() { return SupportedSlabKernels().kernels[0]; }

}  // namespace everlong::kv
