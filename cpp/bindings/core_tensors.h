// Tensors of a block as numpy arrays. Without a bfloat16 in numpy, uint16 holds its bits, both ways. The bits of FP8
// come out as uint8.
#pragma once

#include <pybind11/numpy.h>

#include <map>
#include <string>
#include <vector>

#include "core_arrays.h"
#include "everlong/store/tensor.h"

namespace everlong::bindings {

using ArraysByName = std::map<std::string, ArrayOf<void>>;

// Return views of the arrays' memory, valid while they live. TypeError or ValueError names an array that cannot be a
// tensor: it has another dtype or byte order, or is not C-contiguous.
std::vector<store::TensorView> TensorsOf(const ArraysByName& arrays);

pybind11::array ToArray(const store::Tensor& tensor);

}  // namespace everlong::bindings
