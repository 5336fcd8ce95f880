// Tensors of a block as numpy arrays. numpy has no bfloat16: uint16 stands for its bits, both ways; the bits of the two
// kinds of FP8 come out as uint8.
#pragma once

#include <pybind11/numpy.h>

#include <map>
#include <string>
#include <vector>

#include "everlong/store/tensor.h"

namespace everlong::bindings {

using ArraysByName = std::map<std::string, pybind11::object>;

// Views of the arrays' memory, valid while they live. TypeError or ValueError names the array that no tensor can be: of
// another dtype, another byte order, or not C-contiguous.
std::vector<store::TensorView> TensorsOf(const ArraysByName& arrays);

pybind11::array ToArray(const store::Tensor& tensor);

}  // namespace everlong::bindings
