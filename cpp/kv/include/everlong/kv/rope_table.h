// The parameters of a rotary position embedding: all that decides how a key is rotated. Source: Su et al., RoFormer
// (2021), eq. 15. The attention scaling m is that of YaRN and LongRoPE; HF multiplies cos and sin by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::kv {

// Key positions lie in [0, kPositionLimit). Up to there an fp64 angle is right to 1e-7 rad.
inline constexpr int64_t kPositionLimit = int64_t{1} << 30;

// Which two elements of a head form a plane of rotation.
enum class Pairing : uint8_t {
  kHalfSplit,    // (i, i + rotary_dim/2): Llama, Qwen, Mistral, Gemma ...
  kInterleaved,  // (2i, 2i + 1): GLM, Cohere, GPT-J ...
};

struct RopeTable {
  std::vector<double> inv_freq;    // [rotary_dim / 2], radians a position
  double attention_scaling = 1.0;  // m: a key in the frame is m * R(position) * k
  Pairing pairing = Pairing::kHalfSplit;

  [[nodiscard]] int32_t rotary_dim() const { return static_cast<int32_t>(2 * inv_freq.size()); }

  // Return PhaseAt (kv/position_phase.h) of every pair: cos, sin [rotary_dim / 2].
  void CosSin(int64_t position, std::span<float> cos, std::span<float> sin) const;
};

// kInvalidArgument when a frequency is not finite, m is not positive, or rotary_dim is over head_dim.
Status Validate(const RopeTable& rope, int32_t head_dim);

}  // namespace everlong::kv
