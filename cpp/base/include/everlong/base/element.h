// The arithmetic of one element: number formats and the rotation of one pair. Host C++, hipcc and nvcc compile this
// header, so that every device computes the same bits. It is branch-free, so that loops over it vectorise.
//
// The bits agree everywhere only without contraction of a*b+c: build with -ffp-contract=off (nvcc: --fmad=false).
// Nothing here relies on subnormal fp32 arithmetic, so a host's flush-to-zero mode changes no result above 2^-126. The
// formats are IEEE 754 binary32 and binary16, bfloat16, and two of OCP OFP8. E4M3 has bias 7, largest 448, no infinity
// and NaN 0x7F. E5M2 has bias 15, largest 57344, infinity 0x7C and NaN 0x7D to 0x7F.
#pragma once

#include <cstdint>

#if defined(__HIPCC__) || defined(__CUDACC__)
#define EVERLONG_HD __host__ __device__
#else
#define EVERLONG_HD
#endif

namespace everlong {

// --- bits

// The builtin behind std::bit_cast. The standard function is not device code for every compiler.
EVERLONG_HD inline uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
EVERLONG_HD inline float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kFloatSignMask = 0x80000000U;
inline constexpr uint32_t kFloatInfinityBits = 0x7F800000U;

// Return |value| as ordered bits: kFloatInfinityBits and above are infinity and NaN.
EVERLONG_HD inline uint32_t MagnitudeBits(float value) { return FloatBits(value) & ~kFloatSignMask; }

// Return `a` where the condition holds, else `b`, by a mask. A compiler may turn a plain ?: into a branch when one side
// has floating-point arithmetic, which might trap. Then it does not vectorise the loop around it.
EVERLONG_HD inline uint32_t Select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0U - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

// --- bfloat16

EVERLONG_HD inline float BFloat16ToFloat(uint16_t bits) { return FloatFromBits(static_cast<uint32_t>(bits) << 16); }

// Round to nearest, ties to even. A NaN stays a (quiet) NaN. Overflow becomes infinity.
EVERLONG_HD inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040U;
  return static_cast<uint16_t>(Select(MagnitudeBits(value) > kFloatInfinityBits, quiet_nan, rounded));
}

// --- binary16

EVERLONG_HD inline float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7FFFU;
  const uint32_t normal = (magnitude << 13) + (112U << 23);  // bias 15 -> 127
  const uint32_t special = (magnitude << 13) | kFloatInfinityBits;
  const uint32_t subnormal = FloatBits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  const uint32_t finite = Select(magnitude < 0x0400U, subnormal, normal);
  return FloatFromBits(sign | Select(magnitude >= 0x7C00U, special, finite));
}

// Round to nearest, ties to even. A NaN stays a (quiet) NaN. 65520 and above become infinity.
EVERLONG_HD inline uint16_t FloatToFloat16(float value) {
  const uint32_t sign = (FloatBits(value) >> 16) & 0x8000U;
  const uint32_t bits = MagnitudeBits(value);
  const uint32_t normal = (bits + 0x0FFFU + ((bits >> 13) & 1U) - (112U << 23)) >> 13;
  // One unit of a float in [0.5, 1) is 2^-24, the step of binary16's subnormals: the addition rounds.
  const uint32_t subnormal = FloatBits(FloatFromBits(bits) + 0.5F) - FloatBits(0.5F);
  const uint32_t special = Select(bits > kFloatInfinityBits, 0x7E00U, 0x7C00U);
  const uint32_t finite = Select(bits < 0x38800000U, subnormal, normal);  // 2^-14
  return static_cast<uint16_t>(sign | Select(bits >= 0x477FF000U, special, finite));
}

// --- OCP E4M3

inline constexpr float kE4M3Max = 448.0F;

// Round to nearest, ties to even. Values beyond +-448, infinity too, become +-448. NaN becomes NaN.
EVERLONG_HD inline uint8_t FloatToE4M3(float value) {
  const uint32_t sign = (FloatBits(value) >> 24) & 0x80U;
  const uint32_t bits = MagnitudeBits(value);
  const uint32_t normal = ((bits + 0x7FFFFU + ((bits >> 20) & 1U)) >> 20) - (120U << 3);  // bias 127 -> 7
  // One unit of a float in [2^14, 2^15) is 2^-9, the step of E4M3's subnormals: the addition rounds.
  const uint32_t subnormal = FloatBits(FloatFromBits(bits) + 0x1p14F) - FloatBits(0x1p14F);
  const uint32_t large = bits > kFloatInfinityBits ? 0x7FU : 0x7EU;
  const uint32_t finite = bits < 0x3C800000U ? subnormal : normal;             // 2^-6
  return static_cast<uint8_t>(sign | (bits >= 0x43E00000U ? large : finite));  // 448
}

EVERLONG_HD inline float E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7FU;
  const uint32_t normal = (magnitude << 20) + (120U << 23);
  const uint32_t subnormal = FloatBits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9F);
  const uint32_t finite = Select(magnitude < 0x08U, subnormal, normal);
  return FloatFromBits(sign | Select(magnitude == 0x7FU, 0x7FC00000U, finite));
}

// --- OCP E5M2

inline constexpr float kE5M2Max = 57344.0F;

// Round to nearest, ties to even. Values beyond +-57344, infinity too, become +-57344. NaN becomes NaN.
EVERLONG_HD inline uint8_t FloatToE5M2(float value) {
  const uint32_t sign = (FloatBits(value) >> 24) & 0x80U;
  const uint32_t bits = MagnitudeBits(value);
  const uint32_t normal = ((bits + 0xFFFFFU + ((bits >> 21) & 1U)) >> 21) - (112U << 2);  // bias 127 -> 15
  // One unit of a float in [2^7, 2^8) is 2^-16, the step of E5M2's subnormals: the addition rounds.
  const uint32_t subnormal = FloatBits(FloatFromBits(bits) + 0x1p7F) - FloatBits(0x1p7F);
  const uint32_t large = bits > kFloatInfinityBits ? 0x7FU : 0x7BU;
  const uint32_t finite = bits < 0x38800000U ? subnormal : normal;             // 2^-14
  return static_cast<uint8_t>(sign | (bits >= 0x47600000U ? large : finite));  // 57344
}

// E5M2 is the upper byte of a binary16. A NaN becomes a quiet NaN.
EVERLONG_HD inline float E5M2ToFloat(uint8_t code) {
  const uint32_t quiet = Select((code & 0x7FU) > 0x7CU, 0x00400000U, 0U);
  return FloatFromBits(FloatBits(Float16ToFloat(static_cast<uint16_t>(code << 8))) | quiet);
}

// --- scales: a group of FP8 codes shares one scale. The encoder multiplies by 1 / scale and the decoder by scale, both
// rounded to fp32: code = FloatToE4M3(value * (1 / scale)), value = E4M3ToFloat(code) * scale. A centred group shares
// its centre too: code = FloatToE4M3((value - centre) * (1 / scale)), value = E4M3ToFloat(code) * scale + centre.

// Return the group's largest magnitude / the format's largest number; 1 for a group of zeros. It is never subnormal, so
// that neither the scale nor its reciprocal loses precision.
EVERLONG_HD inline float GroupScale(float largest_magnitude, float format_max) {
  const float scale = largest_magnitude / format_max;
  const float normal = scale < 0x1p-126F ? 0x1p-126F : scale;
  return largest_magnitude == 0.0F ? 1.0F : normal;
}

// Return the middle of a group as a bfloat16. It is rounded towards 0, so that no number of the group is decoded to
// more than the group's largest magnitude. It is never -0.
EVERLONG_HD inline float GroupCentre(float least, float largest) {
  return FloatFromBits(FloatBits(least * 0.5F + largest * 0.5F) & 0xFFFF0000U) + 0.0F;
}

// --- steps: a group of integer codes of `bits` bits shares a step and its least number. The step is a bfloat16. The
// least number is counted in units of step * 2^(bits - 8), about a 256th of the group's range, and is 16 bits. So
// code = round((value - least) / step), value = code * step + least. Both terms are exact, so a decoded number is
// rounded once. Numbers lie below kStepsLimit.

inline constexpr float kStepsLimit = 0x1p126F;
inline constexpr float kLeastStep = 0x1p-118F;
// A sum with it has the number rounded to an integer, ties to even, in its low bits.
inline constexpr float kToInteger = 0x1.8p23F;

EVERLONG_HD constexpr uint32_t LargestCode(int32_t bits) { return (1U << bits) - 1U; }
EVERLONG_HD inline float PowerOfTwo(int32_t exponent) {
  return FloatFromBits(static_cast<uint32_t>(127 + exponent) << 23);
}

// Return the step of a group, rounded up. The least number is then at most 2^15 units from 0.
EVERLONG_HD inline float GroupStep(float least, float largest, int32_t bits) {
  const uint32_t low = MagnitudeBits(least);
  const uint32_t high = MagnitudeBits(largest);
  const float farthest = FloatFromBits(low > high ? low : high);
  const float of_range = (largest * 0.5F - least * 0.5F) / (static_cast<float>(LargestCode(bits)) * 0.5F);
  const float of_distance = farthest * (0x1.02p-15F * PowerOfTwo(8 - bits));
  const float larger = of_range > of_distance ? of_range : of_distance;
  const float normal = larger < kLeastStep ? kLeastStep : larger;
  return FloatFromBits((FloatBits(normal) + 0xFFFFU) & 0xFFFF0000U);
}

// Return what a group keeps: the step in the lower half, the least number in the upper.
EVERLONG_HD inline uint32_t StepsTable(float step, float least, int32_t bits) {
  const float units = least * (1.0F / step * PowerOfTwo(8 - bits));
  return FloatBits(step) >> 16 | (FloatBits(units + kToInteger) - FloatBits(kToInteger)) << 16;
}
EVERLONG_HD inline float StepOf(uint32_t table) { return FloatFromBits(table << 16); }
EVERLONG_HD inline float LeastOf(uint32_t table, int32_t bits) {
  return static_cast<float>(static_cast<int32_t>(table) >> 16) * (StepOf(table) * PowerOfTwo(bits - 8));
}

// Return the code of a number; `inverse` is 1 / step.
EVERLONG_HD inline uint32_t StepsCode(float value, float inverse, float least, int32_t bits) {
  const float steps = (value - least) * inverse;
  const uint32_t code = FloatBits((steps > 0.0F ? steps : 0.0F) + kToInteger) - FloatBits(kToInteger);
  return code < LargestCode(bits) ? code : LargestCode(bits);
}

// Return what a binary16 holds next to a number: half a step may reach beyond its largest.
EVERLONG_HD inline float WithinFloat16(float value) {
  const float low = value > -65504.0F ? value : -65504.0F;
  return low < 65504.0F ? low : 65504.0F;
}

// Return whether a decoder may use such a table: its step is a finite number, and not too small.
EVERLONG_HD inline bool IsStepsTable(uint32_t table) {
  return table << 16 >= FloatBits(kLeastStep) && table << 16 < kFloatInfinityBits;
}

// --- packed codes: code d of a row is its bits [d * bits, (d + 1) * bits), from the lowest bit of the first byte on. A
// row is whole bytes.

EVERLONG_HD constexpr int64_t PackedBytes(int64_t codes, int32_t bits) { return (codes * bits + 7) / 8; }

// Return code `d` of a row; 4 <= bits <= 8.
EVERLONG_HD inline uint32_t PackedCode(const uint8_t* row, int32_t d, int32_t bits) {
  const int64_t first = int64_t{d} * bits;
  const auto shift = static_cast<int32_t>(first % 8);
  const uint8_t* const at = row + first / 8;
  const uint32_t above = shift + bits > 8 ? at[1] : 0U;
  return ((at[0] | above << 8) >> shift) & ((1U << bits) - 1U);
}

// --- rotation of one pair (RoFormer, eq. 15)

struct Pair {
  float x;
  float y;
};

// The cos and sin of an angle, times the attention scaling m.
struct Phase {
  float c;
  float s;
};

EVERLONG_HD inline Pair RotatePair(Pair in, Phase by) { return {in.x * by.c - in.y * by.s, in.y * by.c + in.x * by.s}; }

// Return the phase that undoes `of`, with its m: (c, -s) / (c^2 + s^2), where c^2 + s^2 = m^2 as fp32 rounded them. All
// layers and heads share one for every slot and pair.
EVERLONG_HD inline Phase InversePhase(Phase of) {
  const float norm = of.c * of.c + of.s * of.s;
  return {of.c / norm, -of.s / norm};
}

}  // namespace everlong
