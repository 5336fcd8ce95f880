// derotate_kv and rerotate_kv on a GPU, without torch: raw device pointers and a stream. The same arithmetic as
// cpp/src/kv (kv/element.h), hence the same bits. Every call only enqueues work: it does not wait, allocate or copy to
// the host, and may come from any thread. Pointers stay the caller's and must live until the stream has passed the
// call.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"

namespace everlong::hip {

// k or v: element (b, h, t, d) of `in` lies at b*stride_b + h*stride_h + t*stride_t + d. Strides in elements.
struct HeadRows {
  const void* in = nullptr;
  void* out = nullptr;  // contiguous [B, Hkv, T, D]; must not overlap `in`
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, tokens = 0;
  int32_t head_dim = 0;
  int64_t stride_b = 0, stride_h = 0, stride_t = 0;
};

// One number a pair: cos, sin [T, half] fp32, attention scaling m included; a batch of them is phase_stride_b apart
// (0: all entries of the batch share one).
struct PairPhase {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int32_t half = 0;  // rotary_dim / 2
  bool interleaved = false;
  int64_t stride_b = 0;
};

// The runtime's error code of the launch: 0 is success. `stream` is a hipStream_t or cudaStream_t.
using LaunchStatus = int;

// k.out = k before RoPE; v.out = v.
LaunchStatus DerotateKv(const HeadRows& k, const HeadRows& v, const PairPhase& phase, void* stream);

// k.out = k at positions[t]; v.out = v. positions int64 [T] and inv_freq fp64 [half] on the device; `workspace` holds
// 2 * T * half floats for the angles' cos and sin, computed in fp64 once for all heads.
LaunchStatus RerotateKv(const HeadRows& k, const HeadRows& v, const int64_t* positions, const double* inv_freq,
                        int32_t half, double attention_scaling, bool interleaved, float* workspace, void* stream);

}  // namespace everlong::hip
