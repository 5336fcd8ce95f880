// Names and rules of the manifest that only the store needs (everlong/store/manifest.h has the rest).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "everlong/base/status.h"
#include "everlong/store/manifest.h"

namespace everlong::store {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kManifestTemporary = "manifest.json.tmp";  // left over where a crash cut a replacement
inline constexpr int32_t kMaxLayers = 1 << 20;

// Return kInvalidArgument that names the field of the geometry that no memory can have.
Status ValidateManifest(const Manifest& manifest);

// Return the text of manifest.json, with its checksum. kInvalidArgument as above, when a text is not valid UTF-8, or
// when the result is longer than a reader accepts.
Result<std::string> ManifestText(const Manifest& manifest);
// Parse it from any bytes; errors call them `name`. kCorrupt, kNewerFormat.
Result<Manifest> ParseManifest(std::string_view text, std::string_view name);

}  // namespace everlong::store
