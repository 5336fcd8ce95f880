// Small dense tensors that a block may carry beside its KV. The store knows their shapes and checksums, not their
// meaning. On disk they are the bytes of a safetensors file, which holds only numbers and cannot execute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::store {

// A tensor that the caller owns. `bytes` are row-major, little-endian.
struct TensorView {
  std::string name;
  std::string dtype;  // of safetensors: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U8 BOOL
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// A tensor without its bytes.
struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  bool operator==(const TensorInfo&) const = default;
};

// A tensor of a safetensors file. Its bytes begin at byte `begin` of the file.
struct TensorPlace {
  TensorInfo info;
  int64_t begin = 0;
};

// The limits of one block.
inline constexpr int64_t kMaxTensorName = 128;  // bytes; at least 1
inline constexpr int64_t kMaxTensorDimensions = 16;
inline constexpr int64_t kMaxBlockTensors = 256;
inline constexpr int64_t kMaxBlockTensorBytes = int64_t{64} << 20;  // of all of them

// kInvalidArgument when there are more of them than a block may have, or one that EncodeTensors refuses.
Status ValidateTensors(std::span<const TensorView> tensors);

std::vector<TensorView> ViewsOf(std::span<const Tensor> tensors);

// Return the bytes of one element; 0 for a dtype that the store does not know.
int64_t TensorElementBytes(std::string_view dtype);

// Return the safetensors file of `tensors`. kInvalidArgument names the tensor and what of it is wrong.
Result<std::vector<std::byte>> EncodeTensors(std::span<const TensorView> tensors);
// Return tensors in order of their names. kCorrupt says what is wrong. Any bytes may be given.
Result<std::vector<TensorPlace>> ListTensors(std::span<const std::byte> bytes);
Result<std::vector<Tensor>> DecodeTensors(std::span<const std::byte> bytes);

}  // namespace everlong::store
