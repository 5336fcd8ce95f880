// The element types of tensors that cross into the core.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everlong {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16 };

constexpr size_t DTypeSize(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

}  // namespace everlong
