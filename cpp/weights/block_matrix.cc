#include "everlong/weights/block_matrix.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/parallel_for.h"
#include "product_kernel.h"

namespace everlong::weights {
namespace {

// Rows of x that are multiplied before the next ones are coded: their codes stay in the second or third cache.
constexpr int64_t kRowsAtOnce = 128;
constexpr int64_t kProductsAPart = 1 << 18;  // of a thread's part of a loop: below, starting it costs more
constexpr int64_t kNumbersAPart = 1 << 15;

void StoreNumber(float number, const MutableRows& out, int64_t at) {
  switch (out.dtype) {
    case DType::kFloat32:
      static_cast<float*>(out.data)[at] = number;
      return;
    case DType::kFloat16:
      static_cast<uint16_t*>(out.data)[at] = FloatToFloat16(number);
      return;
    case DType::kBFloat16:
      static_cast<uint16_t*>(out.data)[at] = FloatToBFloat16(number);
      return;
  }
}

const uint8_t* RowOf(const BlockMatrix& matrix, int64_t row_bytes, int64_t row) {
  return reinterpret_cast<const uint8_t*>(matrix.blocks.data()) + row * row_bytes;
}

// Multiply coded rows [first, first + count) with a tile of the matrix' rows, and write what comes out.
void MultiplyTile(const BlockMatrix& matrix, int64_t row_bytes, int64_t first_row, const CodedSpan* spans,
                  int64_t first, int64_t count, std::span<const float> bias, const MutableRows& out) {
  alignas(64) float sums[kRowsAtOnce * kTileRows];
  Tile tile;
  const int64_t rows = std::min<int64_t>(kTileRows, matrix.rows - first_row);
  for (int64_t i = 0; i < kTileRows; ++i) {
    tile.rows[i] = RowOf(matrix, row_bytes, first_row + std::min(i, rows - 1));
  }
  tile.columns = matrix.columns;
  tile.rows_bytes = row_bytes * kTileRows;
  tile.spans = spans;
  tile.count = count;
  tile.sums = sums;
  BestProductKernel().multiply(matrix.format, tile);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t i = 0; i < rows; ++i) {
      const float sum = sums[t * kTileRows + i];
      const float shifted = bias.empty() ? sum : sum + bias[static_cast<size_t>(first_row + i)];
      StoreNumber(shifted, out, (first + t) * matrix.rows + first_row + i);
    }
  }
}

}  // namespace

Result<int64_t> RowBytes(BlockFormat format, int64_t columns) {
  const BlockShape shape = ShapeOf(format);
  if (shape.elements == 0) {
    return InvalidArgumentError("the format of a matrix is " + std::to_string(static_cast<int32_t>(format)) +
                                ", expected the number of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K");
  }
  if (columns < 0 || columns % shape.elements != 0 ||
      columns / shape.elements > std::numeric_limits<int64_t>::max() / shape.bytes) {
    return InvalidArgumentError("a row of a matrix has " + std::to_string(columns) +
                                " elements, expected whole blocks of " + std::to_string(shape.elements));
  }
  return columns / shape.elements * shape.bytes;
}

Status Validate(const BlockMatrix& matrix) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t row_bytes, RowBytes(matrix.format, matrix.columns));
  const auto bytes = static_cast<int64_t>(matrix.blocks.size());
  const bool overflows = matrix.rows > 0 && row_bytes > std::numeric_limits<int64_t>::max() / matrix.rows;
  if (matrix.rows < 0 || overflows || matrix.rows * row_bytes != bytes) {
    return InvalidArgumentError("a matrix has " + std::to_string(bytes) + " bytes, expected " +
                                std::to_string(matrix.rows) + " rows of " + std::to_string(row_bytes));
  }
  return OkStatus();
}

void Multiply(const ConstRows& x, std::span<const RowProduct> products) {
  EVERLONG_CHECK(!products.empty());
  const int64_t columns = products[0].matrix.columns;
  // Codes of x, once for all formats that want the same ones.
  std::vector<CodeTraits> coded;
  std::vector<size_t> codes_of(products.size());  // which of them a matrix is multiplied with
  std::vector<int64_t> first_tile(products.size() + 1);
  for (size_t i = 0; i < products.size(); ++i) {
    const BlockMatrix& matrix = products[i].matrix;
    EVERLONG_CHECK(matrix.columns == columns && RowBytes(matrix.format, columns).ok());
    EVERLONG_CHECK(products[i].bias.empty() || static_cast<int64_t>(products[i].bias.size()) == matrix.rows);
    const CodeTraits traits = TraitsOf(matrix.format);
    codes_of[i] = static_cast<size_t>(std::ranges::find(coded, traits) - coded.begin());
    if (codes_of[i] == coded.size()) coded.push_back(traits);
    first_tile[i + 1] = first_tile[i] + (matrix.rows + kTileRows - 1) / kTileRows;
  }
  const auto x_row_bytes = columns * static_cast<int64_t>(DTypeSize(x.dtype));
  const int64_t row_spans = SpansOf(columns);
  const auto kinds = static_cast<int64_t>(coded.size());
  std::vector<CodedSpan> spans(static_cast<size_t>(kinds * row_spans * std::min(x.count, kRowsAtOnce)));
  for (int64_t first = 0; first < x.count; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, x.count - first);
    ParallelFor(0, count * kinds, kNumbersAPart / std::max<int64_t>(columns, 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i % count;
        const int64_t kind = i / count;
        const void* const row = static_cast<const std::byte*>(x.data) + (first + t) * x_row_bytes;
        CodedSpan* const out = spans.data() + kind * row_spans * count + t;
        BestProductKernel().code_row(row, x.dtype, columns, coded[static_cast<size_t>(kind)], out, count);
      }
    });
    const int64_t grain = kProductsAPart / std::max<int64_t>(columns * kTileRows * count, 1) + 1;
    ParallelFor(0, first_tile.back(), grain, [&](int64_t begin, int64_t end) {
      for (size_t i = 0; i < products.size(); ++i) {
        const RowProduct& product = products[i];
        const int64_t row_bytes = *RowBytes(product.matrix.format, columns);
        const CodedSpan* const own = spans.data() + static_cast<int64_t>(codes_of[i]) * row_spans * count;
        for (int64_t tile = std::max(begin, first_tile[i]); tile < std::min(end, first_tile[i + 1]); ++tile) {
          MultiplyTile(product.matrix, row_bytes, (tile - first_tile[i]) * kTileRows, own, first, count, product.bias,
                       product.out);
        }
      }
    });
  }
}

void Multiply(const BlockMatrix& matrix, const ConstRows& x, std::span<const float> bias, const MutableRows& out) {
  const RowProduct product[] = {{matrix, bias, out}};
  Multiply(x, product);
}

void DecodeRows(const BlockMatrix& matrix, std::span<const int64_t> ids, const MutableRows& out) {
  const Result<int64_t> row_bytes = RowBytes(matrix.format, matrix.columns);
  EVERLONG_CHECK(row_bytes.ok());
  const BlockShape shape = ShapeOf(matrix.format);
  const int64_t grain = kNumbersAPart / std::max<int64_t>(matrix.columns, 1) + 1;
  ParallelFor(0, static_cast<int64_t>(ids.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      EVERLONG_CHECK(id >= 0 && id < matrix.rows);
      const uint8_t* const row = RowOf(matrix, *row_bytes, id);
      for (int64_t column = 0; column < matrix.columns; ++column) {
        const uint8_t* const block = row + column / shape.elements * shape.bytes;
        const auto element = static_cast<int32_t>(column % shape.elements);
        StoreNumber(DecodeElement(matrix.format, block, element), out, i * matrix.columns + column);
      }
    }
  });
}

}  // namespace everlong::weights
