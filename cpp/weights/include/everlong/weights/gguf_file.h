// What a GGUF file says of itself: its metadata, and where each tensor lies. The tensors' numbers are not read.
//
// The file may come from anybody. Every size and offset in it is compared with the file's own size before it is used,
// so a file that was cut short, damaged or made to harm is kCorrupt. Metadata has 64 MiB, 2^22 values and 2^16 entries
// at most, and tensors are 2^16 at most, which bounds the memory of this call to some hundred MB.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong::weights {

// Values of one metadata entry: one value, or the values of an array. Integers and booleans of all widths are int64;
// an uint64 above its range is kCorrupt.
using GgufValues = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

struct GgufEntry {
  std::string key;
  int32_t type = 0;  // GGUF's number for the values' type
  bool is_array = false;
  GgufValues values;  // one, where it is no array
};

struct GgufTensor {
  std::string name;
  int32_t type = 0;            // GGUF's number: that of a BlockFormat, or of another format
  std::vector<int64_t> shape;  // rows first: [N, K] for a matrix; each size is 1 or more
  int64_t offset = 0;          // from the beginning of the file, in bytes
  int64_t bytes = -1;          // -1 for a format whose size this build does not know; its end is not checked
};

struct GgufFile {
  std::vector<GgufEntry> metadata;
  std::vector<GgufTensor> tensors;
  int64_t data_offset = 0;  // where the tensors begin: all before is metadata
};

// Read a file. kNotFound, kIoError, or kCorrupt with the path and what is wrong: such as a key or a tensor that is
// there twice, tensors that overlap, an alignment that is no power of two, and a path that is no file. Thread-safe.
Result<GgufFile> ReadGguf(const FilePath& path);

}  // namespace everlong::weights
