#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/element.h"
#include "everlong/weights/block_matrix.h"
#include "ops_arguments.h"
#include "ops_kernels.h"
#include "ops_results.h"

namespace everlong::ops {

weights::BlockMatrix MatrixOf(std::string_view op, const Tensor& blocks, int64_t format) {
  const auto of = static_cast<weights::BlockFormat>(RequireInt32(op, "format", format, 0));
  ThrowIfError(op, weights::RowBytes(of, 0).status());
  const weights::BlockShape shape = weights::ShapeOf(of);
  const bool fits = blocks.is_cpu() && blocks.scalar_type() == ScalarType::Byte && blocks.dim() == 2 &&
                    blocks.is_contiguous() && blocks.size(1) > 0 && blocks.size(1) % shape.bytes == 0;
  if (!fits) {
    Reject(op, "blocks", Describe(blocks),
           "contiguous uint8 [N, bytes] on the CPU, rows of whole blocks of " + std::to_string(shape.bytes) + " bytes");
  }
  weights::BlockMatrix matrix;
  matrix.format = of;
  matrix.rows = blocks.size(0);
  matrix.columns = blocks.size(1) / shape.bytes * shape.elements;
  matrix.blocks = {static_cast<const std::byte*>(blocks.const_data_ptr()), static_cast<size_t>(blocks.numel())};
  ThrowIfError(op, weights::Validate(matrix));
  return matrix;
}

namespace {

// Return bias [N] of any element type, as fp32.
std::vector<float> BiasOf(std::string_view op, const Tensor& bias, int64_t count) {
  const DType dtype = ElementType(op, "bias", bias);
  if (!bias.is_cpu() || bias.dim() != 1 || bias.size(0) != count) {
    Reject(op, "bias", Describe(bias), "[" + std::to_string(count) + "] on the CPU");
  }
  const Tensor plain = torch::stable::contiguous(bias);
  const void* const data = plain.const_data_ptr();
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::kFloat32:
        values[i] = static_cast<const float*>(data)[i];
        break;
      case DType::kFloat16:
        values[i] = Float16ToFloat(static_cast<const uint16_t*>(data)[i]);
        break;
      case DType::kBFloat16:
        values[i] = BFloat16ToFloat(static_cast<const uint16_t*>(data)[i]);
        break;
    }
  }
  return values;
}

}  // namespace

Tensor BlockLinear(const Tensor& x, const Tensor& blocks, int64_t format, const std::optional<Tensor>& bias) {
  constexpr std::string_view kOp = "block_linear";
  const weights::BlockMatrix matrix = MatrixOf(kOp, blocks, format);
  const DType dtype = ElementType(kOp, "x", x);
  if (!x.is_cpu() || x.dim() < 1 || x.size(x.dim() - 1) != matrix.columns) {
    Reject(kOp, "x", Describe(x), "[..., " + std::to_string(matrix.columns) + "] on the CPU, as the rows of blocks");
  }
  const std::vector<float> added = bias.has_value() ? BiasOf(kOp, *bias, matrix.rows) : std::vector<float>();
  const Tensor rows = torch::stable::contiguous(x);
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) shape.push_back(x.size(d));
  shape.push_back(matrix.rows);
  Tensor out = NewTensor(x, shape, x.scalar_type());
  const int64_t count = x.numel() / matrix.columns;
  weights::Multiply(matrix, {rows.const_data_ptr(), dtype, count}, added, {out.mutable_data_ptr(), dtype});
  return out;
}

Tensor BlockRows(const Tensor& blocks, const Tensor& ids, int64_t format, ScalarType dtype) {
  constexpr std::string_view kOp = "block_rows";
  const weights::BlockMatrix matrix = MatrixOf(kOp, blocks, format);
  if (!ids.is_cpu() || (ids.scalar_type() != ScalarType::Long && ids.scalar_type() != ScalarType::Int)) {
    Reject(kOp, "ids", Describe(ids), "int64 or int32 on the CPU");
  }
  const Tensor flat = torch::stable::contiguous(ids);
  std::vector<int64_t> rows(static_cast<size_t>(flat.numel()));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = flat.scalar_type() == ScalarType::Long ? static_cast<const int64_t*>(flat.const_data_ptr())[i]
                                                     : static_cast<const int32_t*>(flat.const_data_ptr())[i];
    if (rows[i] < 0 || rows[i] >= matrix.rows) {
      Reject(kOp, "an id", std::to_string(rows[i]), "0 to " + std::to_string(matrix.rows - 1));
    }
  }
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < ids.dim(); ++d) shape.push_back(ids.size(d));
  shape.push_back(matrix.columns);
  Tensor out = NewTensor(blocks, shape, dtype);
  const DType type = ElementType(kOp, "dtype", out);
  weights::DecodeRows(matrix, rows, {out.mutable_data_ptr(), type});
  return out;
}

}  // namespace everlong::ops
