// A few tokens through the layers of a decoder of Llama's kind (Touvron et al. 2023), whose matrices are blocks. Also
// Qwen2's, whose queries, keys and values have a bias, and Qwen3's, whose heads are normed.
//
// Each layer: x += o(attention(norm(x))), x += down(silu(gate(norm(x))) * up(norm(x))). Numbers are fp32. Products are
// those of block_matrix.h. Every instruction set computes the same bits, with any number of threads, and a token's do
// not depend on those that follow it, nor on those of other streams.
#pragma once

#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/weights/block_matrix.h"

namespace everlong::weights {

// A linear layer. `bias` has as many numbers as the matrix has rows, or none.
struct Linear {
  BlockMatrix matrix;
  std::span<const float> bias;
};

// E numbers a token, H query heads and Hkv key heads of D numbers each, I numbers in the middle of the feed-forward.
struct DecoderLayer {
  std::span<const float> attention_norm;     // [E]
  Linear query, key, value;                  // [H * D, E], [Hkv * D, E] twice
  std::span<const float> query_norm;         // [D] or none
  std::span<const float> key_norm;           // [D] or none
  Linear output;                             // [E, H * D]
  std::span<const float> feed_forward_norm;  // [E]
  Linear gate, up;                           // [I, E]
  Linear down;                               // [E, I]
};

struct HeadShape {
  int64_t heads = 0;     // H, a multiple of Hkv
  int64_t kv_heads = 0;  // Hkv
  int64_t head_dim = 0;  // D, a multiple of 16
};

// Tokens that follow each other, and the slots of their keys and values in one layer. Head h's slot s begins at k + h *
// head_stride + s * D; v likewise.
struct Stream {
  int64_t tokens = 0;
  float* k = nullptr;
  float* v = nullptr;
  int64_t head_stride = 0;
  int64_t begin = 0;  // the first slot that is attended to
  int64_t end = 0;    // where the first token's key and value go. Each token attends to all slots up to its own
};

// What all layers share for T tokens, those of all streams.
struct TokenStep {
  HeadShape shape;
  std::span<const float> cos;  // [T, D / 2], of their positions; element i turns with element i + D / 2
  std::span<const float> sin;
  float epsilon = 0;  // of the norms
  float scale = 0;    // of q . k
};

// kInvalidArgument where the sizes of a layer do not fit a token of E numbers and these heads.
Status Validate(const DecoderLayer& layer, const HeadShape& shape, int64_t width);

// Replace x [T, E] by what the layer makes of it, stream after stream. It writes the tokens' keys and values to their
// slots. The layer is valid, no two streams share slots, and x shares no memory with any. It runs on the threads of the
// parallel-for hook, and calls with other x and slots may run at once.
void ComputeTokens(const DecoderLayer& layer, const TokenStep& step, std::span<const Stream> streams,
                   std::span<float> x);

}  // namespace everlong::weights
