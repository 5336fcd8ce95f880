// The inner loops of a product, in every instruction set that this CPU can run. All give the same bits.
#pragma once

#include <cstdint>

#include "coded_rows.h"
#include "everlong/base/dtype.h"
#include "everlong/base/kernel_table.h"
#include "everlong/weights/block_format.h"

namespace everlong::weights {

inline constexpr int32_t kTileRows = 16;  // rows of w that are multiplied together

// Rows of w, and rows of x to multiply them with.
struct Tile {
  const uint8_t* rows[kTileRows];    // where each begins; a tile with fewer rows names its last one again
  int64_t columns = 0;               // K
  int64_t rows_bytes = 0;            // of all rows of a tile: the next one begins so far behind its first row
  const CodedSpan* spans = nullptr;  // [span][count]
  int64_t count = 0;
  float* sums = nullptr;  // [count][kTileRows], aligned to 64 bytes
};

struct ProductKernel {
  const char* name;
  // Code a row of K numbers. Span i of it becomes spans[i * stride].
  void (*code_row)(const void* row, DType dtype, int64_t columns, const CodeTraits& traits, CodedSpan* spans,
                   int64_t stride);
  // Write the sums of a tile. The format is one of block_format.h.
  void (*multiply)(BlockFormat format, const Tile& tile);
};

CodeTraits TraitsOf(BlockFormat format);

const KernelTable<ProductKernel>& SupportedProductKernels();
inline const ProductKernel& BestProductKernel() { return SupportedProductKernels().kernels[0]; }

}  // namespace everlong::weights
