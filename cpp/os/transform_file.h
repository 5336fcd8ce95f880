// The tables of a transform (kv/transform.h) as a safetensors file. docs/format.md, "Own files", has its tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/transform.h"

namespace everlong::os {

// Return the name under which a memory keeps a file of tables, which is also the codec's.
std::string TransformNameOf(std::span<const std::byte> file);

// Return the transform of a file, for payloads of this shape and the model with this fingerprint of its weights.
// kModelMismatch for tables of another model or shape; kCorrupt for anything else that is wrong with it.
Result<std::shared_ptr<const kv::Transform>> ParseTransform(std::span<const std::byte> file,
                                                            const kv::PayloadLayout& layout, std::string_view weights);

}  // namespace everlong::os
