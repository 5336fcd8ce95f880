// Names and rules of the manifest that the store itself needs (everlong/store/manifest.h has the rest).
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

// kInvalidArgument naming the field of the geometry that no memory can have.
Status ValidateManifest(const Manifest& manifest);

// The text of manifest.json, its checksum in it. kInvalidArgument as above, when a text is not valid UTF-8, or when
// it is longer than what is read.
Result<std::string> ManifestText(const Manifest& manifest);
// The other way round, from any bytes; `name` is what errors call them. kCorrupt, kNewerFormat.
Result<Manifest> ParseManifest(std::string_view text, std::string_view name);

}  // namespace everlong::store
