// A matrix in blocks as they lie in a file, its rows, and its products with rows of numbers.
//
// A product y[t, n] is defined here once, and every instruction set computes its very bits, whatever the number of
// rows:
// 1. A row of x is coded in groups of 32: codes round(x * (127 / largest magnitude)), ties to even, which count in
//    units of largest / 127. In fine groups 32512 takes the place of 127. They are those whose largest magnitude,
//    squared, is above 1.5 times the mean of these squares over the row: they make most of the error of 8 bits. A group
//    below 2^-100 counts as zeros, and one with a NaN or an infinity makes sums that are no finite numbers.
// 2. For each group of the matrix' row, 32 elements (16 in Q6_K), in order: dot = the sum of the products of its codes
//    with those of x, an exact integer as fp32; y = fma(dot, scale of w * scale of x, y). Where the format has a least
//    number, then y = fma(least, scale of x * the sum of x's codes, y).
// 3. y + bias, both fp32, is rounded to the type of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/dtype.h"
#include "everlong/base/status.h"
#include "everlong/weights/block_format.h"

namespace everlong::weights {

// Not owned. `blocks` is one row behind the other, without gaps, at any address.
struct BlockMatrix {
  BlockFormat format = BlockFormat::kQ8_0;
  int64_t rows = 0;     // N
  int64_t columns = 0;  // K
  std::span<const std::byte> blocks;
};

// Rows of numbers, contiguous.
struct ConstRows {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t count = 0;  // T
};
struct MutableRows {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

// Return the bytes of a row of `columns` elements. kInvalidArgument for an unknown format, and for columns that are no
// whole number of blocks.
Result<int64_t> RowBytes(BlockFormat format, int64_t columns);

// kInvalidArgument where the bytes are not just those of the shape.
Status Validate(const BlockMatrix& matrix);

// out [T, N] = x [T, K] * matrix^T + bias. `bias` has N numbers, or none. It runs on the threads of the parallel-for
// hook, and any number of calls may run at once. The matrix is valid. `out` shares no memory with x.
void Multiply(const BlockMatrix& matrix, const ConstRows& x, std::span<const float> bias, const MutableRows& out);

// One of several matrices that are multiplied with the same rows.
struct RowProduct {
  BlockMatrix matrix;
  std::span<const float> bias;  // [N], or none
  MutableRows out;              // [T, N]
};

// Do the same for at least one matrix, which all have K columns, in one loop.
void Multiply(const ConstRows& x, std::span<const RowProduct> products);

// out [count, K] = the matrix' rows `ids`, decoded to fp32 and then rounded. Each id is below N.
void DecodeRows(const BlockMatrix& matrix, std::span<const int64_t> ids, const MutableRows& out);

}  // namespace everlong::weights
