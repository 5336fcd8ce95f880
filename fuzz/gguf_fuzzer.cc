// Any bytes as a GGUF file: refused with a reason, or read, and then every tensor lies in the file, apart from others.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/weights/gguf_file.h"

namespace {

using everlong::weights::GgufEntry;
using everlong::weights::GgufFile;
using everlong::weights::GgufTensor;

void Check(const GgufFile& file, int64_t size) {
  for (const GgufEntry& entry : file.metadata) {
    const size_t count = std::visit([](const auto& values) { return values.size(); }, entry.values);
    EVERLONG_CHECK(!entry.key.empty() && (entry.is_array || count == 1));
  }
  std::vector<GgufTensor> tensors = file.tensors;
  std::ranges::sort(tensors, {}, &GgufTensor::offset);
  int64_t end = file.data_offset;
  for (const GgufTensor& tensor : tensors) {
    EVERLONG_CHECK(!tensor.name.empty() && !tensor.shape.empty() && tensor.offset >= end);
    EVERLONG_CHECK(std::ranges::all_of(tensor.shape, [](int64_t extent) { return extent >= 1; }));
    end = tensor.offset + std::max<int64_t>(tensor.bytes, 0);
    EVERLONG_CHECK(end <= size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("fuzzed.gguf", MFD_CLOEXEC);
  static const std::string name = "/proc/self/fd/" + std::to_string(file);
  EVERLONG_CHECK(file >= 0 && ::ftruncate(file, 0) == 0);
  EVERLONG_CHECK(::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  const auto read = everlong::weights::ReadGguf(everlong::FilePath(name));
  if (read.ok()) {
    Check(*read, static_cast<int64_t>(size));
  } else {
    EVERLONG_CHECK(read.status().code() == everlong::StatusCode::kCorrupt);
  }
  return 0;
}
