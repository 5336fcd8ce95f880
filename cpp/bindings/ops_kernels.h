// The functions behind torch.ops.everlong.*: those for tensors on the CPU in everlong::ops, on a GPU in
// everlong::ops::gpu. The schemas are in ops_library.cc, shapes and units in python/everlong/ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace everlong::ops {

using torch::stable::Tensor;

using DerotateKvFunction = std::tuple<Tensor, Tensor>(const Tensor& k, const Tensor& v, const Tensor& cos,
                                                      const Tensor& sin, bool interleaved);
using RerotateKvFunction = std::tuple<Tensor, Tensor>(const Tensor& k, const Tensor& v, const Tensor& new_pos_ids,
                                                      const std::optional<Tensor>& inv_freq, double attention_scaling,
                                                      bool interleaved);
using ShiftKvFunction = void(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t source,
                             int64_t target, int64_t count, int64_t delta, const Tensor& inv_freq, bool interleaved);
using GatherKvFunction = void(const Tensor& from_k, const Tensor& from_v, const Tensor& from_cos,
                              const Tensor& from_sin, const Tensor& sources, const Tensor& to_k, const Tensor& to_v,
                              const Tensor& to_cos, const Tensor& to_sin, const Tensor& targets,
                              const Tensor& positions, const Tensor& inv_freq, double attention_scaling,
                              bool interleaved);
using ArchiveKvFunction = Tensor(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                                 int64_t first_slot, int64_t tokens, int64_t page_tokens, const std::string& codec,
                                 bool interleaved);
using ArchiveKvOutFunction = void(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                                  int64_t first_slot, int64_t tokens, int64_t page_tokens, const std::string& codec,
                                  bool interleaved, const Tensor& out, const std::optional<Tensor>& refused);
using RequireArchivedFunction = void(const Tensor& refused, int64_t layers, int64_t kv_heads, int64_t head_dim,
                                     int64_t first_slot, int64_t page_tokens, const std::string& codec);
using RestoreKvFunction = void(const Tensor& payload, const Tensor& placements, const Tensor& k, const Tensor& v,
                               const Tensor& cos, const Tensor& sin, int64_t page_tokens, const std::string& codec,
                               const Tensor& inv_freq, double attention_scaling, bool interleaved);
using EncodeKvFunction = Tensor(const Tensor& k, const Tensor& v, int64_t page_tokens, const std::string& codec);
using DecodeKvFunction = std::tuple<Tensor, Tensor>(const Tensor& payload, int64_t layers, int64_t kv_heads,
                                                    int64_t tokens, int64_t head_dim, int64_t page_tokens,
                                                    const std::string& codec, torch::headeronly::ScalarType dtype);

DerotateKvFunction DerotateKv;
RerotateKvFunction RerotateKv;
ShiftKvFunction ShiftKv;
GatherKvFunction GatherKv;
ArchiveKvFunction ArchiveKv;
ArchiveKvOutFunction ArchiveKvOut;
RequireArchivedFunction RequireArchived;  // only on the host
RestoreKvFunction RestoreKv;
EncodeKvFunction EncodeKv;
DecodeKvFunction DecodeKv;

// Only on the host.
Tensor BlockLinear(const Tensor& x, const Tensor& blocks, int64_t format, const std::optional<Tensor>& bias);
Tensor BlockRows(const Tensor& blocks, const Tensor& ids, int64_t format, torch::headeronly::ScalarType dtype);
void DecodeTokens(const Tensor& hidden, const std::vector<Tensor>& matrices, const std::vector<Tensor>& vectors,
                  const std::vector<int64_t>& formats, const std::vector<Tensor>& k, const std::vector<Tensor>& v,
                  const std::vector<int64_t>& spans, const Tensor& cos, const Tensor& sin, double epsilon,
                  double scale);

// They have the CPU's arguments, checks and errors, and enqueue on the current stream. Only encode_kv waits, and
// archive_kv without `refused`, because both must know that every number was finite. The host reads cos and sin of
// derotate_kv, positions, placements and inv_freq. If these are on the CPU, they cost no wait.
namespace gpu {

DerotateKvFunction DerotateKv;
RerotateKvFunction RerotateKv;
ShiftKvFunction ShiftKv;
GatherKvFunction GatherKv;
ArchiveKvFunction ArchiveKv;
ArchiveKvOutFunction ArchiveKvOut;
RestoreKvFunction RestoreKv;
EncodeKvFunction EncodeKv;
DecodeKvFunction DecodeKv;

}  // namespace gpu
}  // namespace everlong::ops
