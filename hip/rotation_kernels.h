// derotate_kv and rerotate_kv on a GPU, with raw device pointers and a stream, without torch. They use the arithmetic
// of cpp/kv (base/element.h), so they give the same bits. The rules for every kernel here: a call only enqueues work.
// It does not wait, allocate or copy to the host. It may come from any thread. The caller owns the pointers, which must
// live until the stream has passed the call.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"
#include "launch.h"

namespace everlong::hip {

struct RowStrides {  // in elements
  int64_t b = 0, h = 0, t = 0;
};

// k or v [B, Hkv, T, D]: element (b, h, t, d) lies at b*strides.b + h*strides.h + t*strides.t + d.
struct HeadRows {
  const void* in = nullptr;
  void* out = nullptr;  // not overlapping `in`, or every row at its place in `in`
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, tokens = 0;
  int32_t head_dim = 0;
  RowStrides in_strides;
  RowStrides out_strides;
};

// One number a pair, cos and sin in fp32, with the attention scaling m. The number of pair i of row (b, h, t) lies at
// b*stride_b + t*stride_t + i. A stride of 0 means that all share one.
struct PairPhase {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int32_t half = 0;  // rotary_dim / 2
  bool interleaved = false;
  int64_t stride_b = 0;
  int64_t stride_t = 0;
};

// out = R in, phase by phase. With `half` 0 it copies.
LaunchStatus RotateRows(const HeadRows& rows, const PairPhase& phase, void* stream);

// k.out = k before RoPE; v.out = v.
LaunchStatus DerotateKv(const HeadRows& k, const HeadRows& v, const PairPhase& phase, void* stream);

// k.out = k at positions[t]; v.out = v. positions int64 [T] and inv_freq fp64 [half] are on the device. `workspace`
// holds 2 * T * half floats for cos and sin of the angles, which are computed in fp64 once for all heads.
LaunchStatus RerotateKv(const HeadRows& k, const HeadRows& v, const int64_t* positions, const double* inv_freq,
                        int32_t half, double attention_scaling, bool interleaved, float* workspace, void* stream);

}  // namespace everlong::hip
