// Names and rules of the manifest that the store itself needs (everlong/store/manifest.h has the rest).
#pragma once

#include <cstdint>

#include "everlong/base/status.h"
#include "everlong/store/manifest.h"

namespace everlong::store {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kManifestTemporary = "manifest.json.tmp";  // left over where a crash cut a replacement
inline constexpr int32_t kMaxLayers = 1 << 20;

// kInvalidArgument naming the field of the geometry that no memory can have.
Status ValidateManifest(const Manifest& manifest);

}  // namespace everlong::store
