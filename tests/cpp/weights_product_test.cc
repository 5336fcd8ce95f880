// Products with matrices in blocks: every instruction set against the portable one, and that against doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "../../cpp/weights/product_kernel.h"
#include "everlong/base/element.h"
#include "everlong/weights/block_matrix.h"
#include "weights_random_matrix.h"

namespace everlong::weights {
namespace {

std::vector<float> RandomNumbers(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = normal(random) * (i / kGroup % 5 == 0 ? 4.0F : 1.0F);  // some groups are fine
  }
  return numbers;
}

std::vector<float> Product(const BlockMatrix& matrix, const std::vector<float>& x, std::span<const float> bias = {}) {
  const auto count = static_cast<int64_t>(x.size()) / matrix.columns;
  std::vector<float> out(static_cast<size_t>(count * matrix.rows));
  Multiply(matrix, {x.data(), DType::kFloat32, count}, bias, {out.data(), DType::kFloat32});
  return out;
}

// Return the sums of one tile as a kernel computes them.
std::vector<float> TileSums(const ProductKernel& kernel, const BlockMatrix& matrix, const std::vector<float>& x) {
  const auto count = static_cast<int64_t>(x.size()) / matrix.columns;
  std::vector<CodedSpan> spans(static_cast<size_t>(SpansOf(matrix.columns) * count));
  for (int64_t t = 0; t < count; ++t) {
    kernel.code_row(x.data() + t * matrix.columns, DType::kFloat32, matrix.columns, TraitsOf(matrix.format),
                    spans.data() + t, count);
  }
  const int64_t row_bytes = *RowBytes(matrix.format, matrix.columns);
  Tile tile;
  for (int64_t row = 0; row < kTileRows; ++row) {
    tile.rows[row] =
        reinterpret_cast<const uint8_t*>(matrix.blocks.data()) + std::min(row, matrix.rows - 1) * row_bytes;
  }
  tile.columns = matrix.columns;
  tile.rows_bytes = row_bytes * kTileRows;
  tile.spans = spans.data();
  tile.count = count;
  struct alignas(64) Line {
    float numbers[kTileRows];
  };
  std::vector<Line> sums(static_cast<size_t>(count));
  tile.sums = sums.front().numbers;
  kernel.multiply(matrix.format, tile);
  std::vector<float> out;
  for (const Line& line : sums) out.insert(out.end(), line.numbers, line.numbers + kTileRows);
  return out;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(FloatBits(a[i]), FloatBits(b[i])) << i;
}

TEST(BlockProduct, EveryInstructionSetComputesTheSameBits) {
  std::mt19937 random(1);
  const auto& table = SupportedProductKernels();
  for (const BlockFormat format : kFormats) {
    for (const int64_t columns : {256, 768, 32, 288}) {
      if (columns % ShapeOf(format).elements != 0) continue;
      for (const int64_t count : {1, 2, 3, 8, 13}) {
        const OwnedMatrix owned = RandomMatrix(format, kTileRows - 3, columns, random);
        const std::vector<float> x = RandomNumbers(count * columns, random);
        const std::vector<float> portable = TileSums(table.kernels[table.count - 1], owned.matrix, x);
        for (int32_t i = 0; i + 1 < table.count; ++i) {
          SCOPED_TRACE(table.kernels[i].name);
          ExpectSameBits(TileSums(table.kernels[i], owned.matrix, x), portable);
        }
      }
    }
  }
}

TEST(BlockProduct, LargestCodesDoNotOverflow) {
  std::mt19937 random(2);
  const auto& table = SupportedProductKernels();
  for (const BlockFormat format : kFormats) {
    OwnedMatrix owned = RandomMatrix(format, kTileRows, 256, random);
    for (const int32_t all : {0x00, 0x7F, 0x80, 0xFF}) {
      const BlockShape shape = ShapeOf(format);
      for (size_t i = 0; i < owned.bytes.size(); ++i) {
        const auto at = static_cast<int32_t>(i % static_cast<size_t>(shape.bytes));
        bool is_half = false;
        for (const int32_t half : HalvesOf(format)) is_half = is_half || at == half || at == half + 1;
        if (!is_half) owned.bytes[i] = static_cast<std::byte>(all);
      }
      for (const float sign : {1.0F, -1.0F}) {
        std::vector<float> x(256, sign);                  // codes of 127
        for (size_t i = 32; i < 64; ++i) x[i] *= 100.0F;  // a fine group, of the largest codes
        const std::vector<float> portable = TileSums(table.kernels[table.count - 1], owned.matrix, x);
        for (int32_t i = 0; i + 1 < table.count; ++i) {
          SCOPED_TRACE(table.kernels[i].name);
          ExpectSameBits(TileSums(table.kernels[i], owned.matrix, x), portable);
        }
      }
    }
  }
}

// Return a row of x as its codes have it.
std::vector<double> CodedRow(std::span<const float> x) {
  std::vector<float> largest;
  double squares = 0.0;
  for (size_t first = 0; first < x.size(); first += kGroup) {
    float most = 0.0F;
    for (const float number : x.subspan(first, kGroup)) most = std::max(most, std::abs(number));
    largest.push_back(most);
    squares += static_cast<double>(most) * most;
  }
  std::vector<double> coded;
  for (size_t i = 0; i < x.size(); ++i) {
    const float most = largest[i / kGroup];
    const double mean = squares / static_cast<double>(largest.size());
    const float steps = static_cast<double>(most) * most > 1.5 * mean ? 32512.0F : 127.0F;
    coded.push_back(std::nearbyint(x[i] * (steps / most)) * static_cast<double>(most / steps));
  }
  return coded;
}

std::vector<double> Coded(const std::vector<float>& x, int64_t columns) {
  std::vector<double> coded;
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(columns)) {
    const std::vector<double> row = CodedRow(std::span(x).subspan(first, static_cast<size_t>(columns)));
    coded.insert(coded.end(), row.begin(), row.end());
  }
  return coded;
}

TEST(BlockProduct, IsThatOfTheDecodedNumbers) {
  std::mt19937 random(3);
  for (const BlockFormat format : kFormats) {
    for (const int64_t rows : {1, 16, 37}) {
      for (const int64_t count : {1, 3, 300}) {
        constexpr int64_t kColumns = 512;
        const OwnedMatrix owned = RandomMatrix(format, rows, kColumns, random);
        const std::vector<float> x = RandomNumbers(count * kColumns, random);
        const std::vector<float> bias = RandomNumbers(rows, random);
        const std::vector<double> coded = Coded(x, kColumns);
        std::vector<int64_t> ids;
        for (int64_t row = 0; row < rows; ++row) ids.push_back(row);
        std::vector<float> decoded(static_cast<size_t>(rows * kColumns));
        DecodeRows(owned.matrix, ids, {decoded.data(), DType::kFloat32});
        const std::vector<float> out = Product(owned.matrix, x, bias);
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t row = 0; row < rows; ++row) {
            double sum = bias[static_cast<size_t>(row)];
            double size = std::abs(sum);
            for (int64_t k = 0; k < kColumns; ++k) {
              const double product =
                  coded[static_cast<size_t>(t * kColumns + k)] * decoded[static_cast<size_t>(row * kColumns + k)];
              sum += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(out[static_cast<size_t>(t * rows + row)], sum, 1e-5 * size);
          }
        }
      }
    }
  }
}

TEST(BlockProduct, ARowDoesNotDependOnTheOthers) {
  std::mt19937 random(4);
  const OwnedMatrix owned = RandomMatrix(BlockFormat::kQ4_K, 40, 512, random);
  const std::vector<float> x = RandomNumbers(int64_t{270} * 512, random);
  const std::vector<float> all = Product(owned.matrix, x);
  for (const int64_t t : {0, 7, 255, 256, 269}) {
    const std::vector<float> row(x.begin() + t * 512, x.begin() + (t + 1) * 512);
    ExpectSameBits(Product(owned.matrix, row), {all.begin() + t * 40, all.begin() + (t + 1) * 40});
  }
}

TEST(BlockProduct, SixteenBitsAreRoundedOnce) {
  std::mt19937 random(5);
  const OwnedMatrix owned = RandomMatrix(BlockFormat::kQ5_0, 20, 64, random);
  std::vector<uint16_t> halves;
  std::vector<float> x = RandomNumbers(128, random);
  for (float& number : x) {
    halves.push_back(FloatToBFloat16(number));
    number = BFloat16ToFloat(halves.back());
  }
  std::vector<uint16_t> out(40);
  Multiply(owned.matrix, {halves.data(), DType::kBFloat16, 2}, {}, {out.data(), DType::kBFloat16});
  const std::vector<float> wide = Product(owned.matrix, x);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], FloatToBFloat16(wide[i]));
}

TEST(BlockProduct, ZerosAndNumbersThatAreNoneShow) {
  std::mt19937 random(6);
  for (const BlockFormat format : kFormats) {
    const OwnedMatrix owned = RandomMatrix(format, 3, 256, random);
    std::vector<float> x(256, 0.0F);
    for (const float sum : Product(owned.matrix, x)) EXPECT_EQ(sum, 0.0F);
    x[40] = 1e-38F;
    for (const float sum : Product(owned.matrix, x)) EXPECT_EQ(sum, 0.0F);
    for (const float none : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      x[40] = none;
      for (const float sum : Product(owned.matrix, x)) EXPECT_FALSE(std::isfinite(sum));
    }
  }
}

TEST(BlockMatrixShape, BytesMustBeThoseOfTheShape) {
  const std::vector<std::byte> bytes(18 * 6);
  EXPECT_TRUE(Validate({BlockFormat::kQ4_0, 3, 64, bytes}).ok());
  EXPECT_EQ(Validate({BlockFormat::kQ4_0, 2, 64, bytes}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate({BlockFormat::kQ4_0, 3, 65, bytes}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate({BlockFormat::kQ4_0, -3, -64, bytes}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate({static_cast<BlockFormat>(9), 3, 64, bytes}).code(), StatusCode::kInvalidArgument);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Validate({BlockFormat::kQ4_0, kHuge, 64, bytes}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate({BlockFormat::kQ8_0, 1, kHuge / 32 * 32, bytes}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::weights
