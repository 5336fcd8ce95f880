// Any bytes as a manifest: refused with a reason, or read, and then written back as what reads the same.
#include <cstdint>
#include <string>
#include <string_view>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"
#include "manifest_file.h"

namespace {

using everlong::Result;
using everlong::store::Manifest;

void Check(std::string_view text) {
  const Result<Manifest> manifest = everlong::store::ParseManifest(text, "fuzzed");
  if (!manifest.ok()) return;
  const Result<std::string> written = everlong::store::ManifestText(*manifest);
  if (!written.ok()) return;  // a format that is older than what is written now
  const Result<Manifest> again = everlong::store::ParseManifest(*written, "written");
  EVERLONG_CHECK(again.ok());
  EVERLONG_CHECK(again->fingerprint == manifest->fingerprint && again->geometry == manifest->geometry);
  EVERLONG_CHECK(again->attributes == manifest->attributes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Check(text);
  // And what stands behind the checksum, which no fuzzer guesses.
  std::string checked = "{\n  \"crc32c\": \"00000000\"";
  const size_t digits = checked.find("00000000");
  checked.append(text);
  const uint32_t crc = everlong::Crc32c(std::as_bytes(std::span(checked.data(), checked.size())));
  for (size_t i = 0; i < 8; ++i) checked[digits + i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 15U];
  Check(checked);
  return 0;
}
