// The manifest.json of a memory: what it is, and for which model. Replaced by atomic rename, never edited in place.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong::store {

inline constexpr int32_t kFormatVersion = 3;
inline constexpr int32_t kCatalogSchema = 2;  // the newest number of the catalog's tables, since format 2

// What a payload depends on. The strings are opaque; equal strings mean interchangeable.
struct Fingerprint {
  std::string weights;
  std::string rope;
  std::string tokenizer;
  bool operator==(const Fingerprint&) const = default;
};

// The shape of a payload page, for readers. kv::PayloadLayout has the same fields, with their meaning.
struct Geometry {
  int32_t layers = 0;  // parts of a page; 0: a memory of text alone, its blocks have token ids and no payload
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  std::string codec;  // of a memory of format 1 or 2 with FP8: the name that this format has for how it was
  bool operator==(const Geometry&) const = default;
};

constexpr bool TextAlone(const Geometry& geometry) { return geometry.layers == 0; }

struct Manifest {
  int32_t format_version = kFormatVersion;
  Fingerprint fingerprint;
  Geometry geometry;
  std::map<std::string, std::string> attributes;  // small texts kept with the memory, e.g. the index profile's JSON
};

// Return ok, or kModelMismatch with every field that differs and both values.
Status CheckFingerprint(const Manifest& manifest, const Fingerprint& expected);

// Read the manifest. kNotFound, kCorrupt (with the path and what is wrong), kNewerFormat, kIoError.
Result<Manifest> ReadManifest(const FilePath& folder);
// Write the manifest, durable on return: temporary file, fsync, rename, fsync of the folder.
Status WriteManifest(const FilePath& folder, const Manifest& manifest);

}  // namespace everlong::store
