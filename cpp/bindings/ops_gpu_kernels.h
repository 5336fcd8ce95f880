// The operators on a GPU, registered for torch's CUDA key (which ROCm builds use too): the CPU's arguments, checks and
// errors (ops_kernels.h), enqueued on the stream that is current. Nothing waits but archive_kv and encode_kv, which
// must know that every number was finite. cos, sin of derotate_kv, positions, placements and inv_freq are read by the
// host: on the CPU they cost no wait.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace everlong::ops::gpu {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> DerotateKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                                      bool interleaved);
std::tuple<Tensor, Tensor> RerotateKv(const Tensor& k, const Tensor& v, const Tensor& new_pos_ids,
                                      const Tensor& inv_freq, double attention_scaling, bool interleaved);
void ShiftKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t source, int64_t target,
             int64_t count, int64_t delta, const Tensor& inv_freq, bool interleaved);

Tensor ArchiveKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                 int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved);
void RestoreKv(const Tensor& payload, const Tensor& placements, const Tensor& k, const Tensor& v, const Tensor& cos,
               const Tensor& sin, int64_t page_tokens, const std::string& codec, const Tensor& inv_freq,
               double attention_scaling, bool interleaved);

Tensor EncodeKv(const Tensor& k, const Tensor& v, int64_t page_tokens, const std::string& codec);
std::tuple<Tensor, Tensor> DecodeKv(const Tensor& payload, int64_t layers, int64_t kv_heads, int64_t tokens,
                                    int64_t head_dim, int64_t page_tokens, const std::string& codec,
                                    torch::headeronly::ScalarType dtype);

}  // namespace everlong::ops::gpu
