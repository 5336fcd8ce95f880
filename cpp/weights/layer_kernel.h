// What a decoder's layer computes between its products, in every instruction set that this CPU can run. All give the
// same bits: sums go through 16 lanes whatever the width of a vector, and products are rounded before they are added.
#pragma once

#include <cstdint>

#include "everlong/base/kernel_table.h"

namespace everlong::weights {

inline constexpr int64_t kSumLanes = 16;        // counts of numbers are multiples of it
inline constexpr int64_t kAttendedSlots = 256;  // the most of one call

// Consecutive slots of one key head, and the query heads that share it.
struct Attended {
  const float* k = nullptr;  // [slots, D]
  const float* v = nullptr;
  int64_t slots = 0;  // 1 to kAttendedSlots
  int64_t head_dim = 0;
  const float* queries = nullptr;  // [heads, D]
  int64_t heads = 0;
  float scale = 0;  // of q . k
  // What comes out, for each head: its largest score, the sum of e^(score - largest), and that of these times v.
  float* largest = nullptr;  // [heads]
  float* totals = nullptr;   // [heads]
  float* sums = nullptr;     // [heads, D]
};

struct LayerKernel {
  const char* name;
  // out = weight * (x / sqrt(mean of x * x + epsilon)), n numbers each. `out` may be x.
  void (*norm)(const float* x, const float* weight, int64_t n, float epsilon, float* out);
  // gate = gate / (1 + e^-gate) * up, n numbers each.
  void (*silu_times)(float* gate, const float* up, int64_t n);
  void (*attend)(const Attended& attended);
};

const KernelTable<LayerKernel>& SupportedLayerKernels();
inline const LayerKernel& BestLayerKernel() { return SupportedLayerKernels().kernels[0]; }

}  // namespace everlong::weights
