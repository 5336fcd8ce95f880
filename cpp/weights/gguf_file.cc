#include "everlong/weights/gguf_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/weights/block_format.h"

namespace everlong::weights {
namespace {

static_assert(std::endian::native == std::endian::little);  // as the files are

// What metadata may have. The largest vocabularies (262,144 tokens with merges) take 15 MB and 1.3 million values.
constexpr int64_t kMostMetadata = int64_t{64} << 20;
constexpr uint64_t kMostValues = uint64_t{1} << 22;  // of all arrays together
constexpr uint64_t kMostEntries = uint64_t{1} << 16;
constexpr uint64_t kMostTensors = uint64_t{1} << 16;
constexpr size_t kMostNameBytes = 65535;

constexpr int64_t kMostDimensions = 4;
constexpr uint32_t kMostAlignment = uint32_t{1} << 20;
constexpr uint32_t kDefaultAlignment = 32;
constexpr int64_t kBufferBytes = int64_t{1} << 20;
constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};

// GGUF's numbers for the types of values.
enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Return the bytes of a value; 0 for a string, an array and an unknown type.
int64_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return 0;
}

// Return elements and bytes of a block of a format, where plain numbers are blocks of one.
BlockShape StoredShapeOf(int32_t type) {
  constexpr int32_t kF32 = 0, kF16 = 1, kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27, kF64 = 28, kBf16 = 30;
  constexpr int32_t kQ2K = 10, kQ3K = 11;
  switch (type) {
    case kF32:
    case kI32:
      return {1, 4};
    case kF16:
    case kBf16:
    case kI16:
      return {1, 2};
    case kI8:
      return {1, 1};
    case kI64:
    case kF64:
      return {1, 8};
    case kQ2K:
      return {256, 84};
    case kQ3K:
      return {256, 110};
    default:
      return ShapeOf(static_cast<BlockFormat>(type));
  }
}

// The bytes of a file from its beginning on.
class Reader {
 public:
  Reader(UniqueFd file, FilePath path, int64_t size)
      : file_(std::move(file)), path_(std::move(path)), size_(std::min(size, kMostMetadata)) {}

  [[nodiscard]] int64_t position() const { return position_; }

  // Count values of arrays. Each costs several times its bytes once it is read.
  [[nodiscard]] Status Take(uint64_t values) {
    if (values > values_left_) return Corrupt("its metadata has more than " + std::to_string(kMostValues) + " values");
    values_left_ -= values;
    return OkStatus();
  }

  [[nodiscard]] Status Corrupt(const std::string& what) const {
    return CorruptError("'" + path_.string() + "' is no whole GGUF file: " + what);
  }

  // Require that as many things of at least `bytes` each can follow.
  [[nodiscard]] Status RequireRoom(uint64_t count, int64_t bytes, const std::string& what) const {
    if (count <= static_cast<uint64_t>((size_ - position_) / bytes)) return OkStatus();
    if (size_ == kMostMetadata) return Corrupt("its metadata has more than " + std::to_string(size_) + " bytes");
    return Corrupt("it ends before " + std::to_string(count) + " " + what);
  }

  Status Read(std::span<std::byte> out) {
    EVERLONG_RETURN_IF_ERROR(RequireRoom(out.size(), 1, "bytes at offset " + std::to_string(position_)));
    while (!out.empty()) {
      if (position_ < first_ || position_ >= first_ + static_cast<int64_t>(buffer_.size())) {
        EVERLONG_RETURN_IF_ERROR(Fill());
      }
      const auto at = static_cast<size_t>(position_ - first_);
      const size_t count = std::min(out.size(), buffer_.size() - at);
      std::memcpy(out.data(), buffer_.data() + at, count);
      out = out.subspan(count);
      position_ += static_cast<int64_t>(count);
    }
    return OkStatus();
  }

  template <class T>
  Result<T> Number() {
    T number{};
    EVERLONG_RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(&number, 1))));
    return number;
  }

  Result<std::string> String() {
    EVERLONG_ASSIGN_OR_RETURN(const auto length, Number<uint64_t>());
    EVERLONG_RETURN_IF_ERROR(RequireRoom(length, 1, "bytes of a text"));
    std::string text(length, '\0');
    EVERLONG_RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(text))));
    return text;
  }

  // The name of an entry or of a tensor.
  Result<std::string> Name() {
    const int64_t begin = position_;
    EVERLONG_ASSIGN_OR_RETURN(std::string name, String());
    if (!name.empty() && name.size() <= kMostNameBytes) return name;
    return Corrupt("a name at offset " + std::to_string(begin) + " has " + std::to_string(name.size()) +
                   " bytes, expected 1 to " + std::to_string(kMostNameBytes));
  }

 private:
  Status Fill() {
    buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, size_ - position_)));
    first_ = position_;
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(file_, path_, position_, buffer_));
    if (count == static_cast<int64_t>(buffer_.size())) return OkStatus();
    return Corrupt("it became shorter while it was read");
  }

  UniqueFd file_;
  FilePath path_;
  int64_t size_;  // that may be read
  int64_t position_ = 0;
  int64_t first_ = 0;  // where the buffer's bytes lie in the file
  uint64_t values_left_ = kMostValues;
  std::vector<std::byte> buffer_;
};

template <class T>
Result<int64_t> IntegerOf(Reader& reader) {
  EVERLONG_ASSIGN_OR_RETURN(const T number, reader.Number<T>());
  if (std::in_range<int64_t>(number)) return static_cast<int64_t>(number);
  return reader.Corrupt("an integer of its metadata is 2^63 or more");
}

Result<int64_t> IntegerOf(Reader& reader, ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kBool:
      return IntegerOf<uint8_t>(reader);
    case ValueType::kInt8:
      return IntegerOf<int8_t>(reader);
    case ValueType::kUint16:
      return IntegerOf<uint16_t>(reader);
    case ValueType::kInt16:
      return IntegerOf<int16_t>(reader);
    case ValueType::kUint32:
      return IntegerOf<uint32_t>(reader);
    case ValueType::kInt32:
      return IntegerOf<int32_t>(reader);
    case ValueType::kUint64:
      return IntegerOf<uint64_t>(reader);
    default:
      return IntegerOf<int64_t>(reader);
  }
}

Result<double> FloatOf(Reader& reader, ValueType type) {
  if (type == ValueType::kFloat64) return reader.Number<double>();
  EVERLONG_ASSIGN_OR_RETURN(const float number, reader.Number<float>());
  return static_cast<double>(number);
}

// Read `count` values of a type that is no array.
Result<GgufValues> ValuesOf(Reader& reader, ValueType type, uint64_t count) {
  const bool is_text = type == ValueType::kString;
  const int64_t least_bytes = is_text ? static_cast<int64_t>(sizeof(uint64_t)) : SizeOf(type);
  if (least_bytes == 0) {
    return reader.Corrupt("its metadata has a value of the type " + std::to_string(static_cast<uint32_t>(type)));
  }
  EVERLONG_RETURN_IF_ERROR(reader.RequireRoom(count, least_bytes, "values of an array"));
  EVERLONG_RETURN_IF_ERROR(reader.Take(count));
  if (is_text) {
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < count; ++i) {
      EVERLONG_ASSIGN_OR_RETURN(std::string text, reader.String());
      texts.push_back(std::move(text));
    }
    return GgufValues(std::move(texts));
  }
  if (type == ValueType::kFloat32 || type == ValueType::kFloat64) {
    std::vector<double> numbers;
    for (uint64_t i = 0; i < count; ++i) {
      EVERLONG_ASSIGN_OR_RETURN(const double number, FloatOf(reader, type));
      numbers.push_back(number);
    }
    return GgufValues(std::move(numbers));
  }
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < count; ++i) {
    EVERLONG_ASSIGN_OR_RETURN(const int64_t number, IntegerOf(reader, type));
    numbers.push_back(number);
  }
  return GgufValues(std::move(numbers));
}

Result<GgufEntry> EntryOf(Reader& reader) {
  GgufEntry entry;
  EVERLONG_ASSIGN_OR_RETURN(entry.key, reader.Name());
  EVERLONG_ASSIGN_OR_RETURN(auto type, reader.Number<uint32_t>());
  uint64_t count = 1;
  entry.is_array = static_cast<ValueType>(type) == ValueType::kArray;
  if (entry.is_array) {
    EVERLONG_ASSIGN_OR_RETURN(type, reader.Number<uint32_t>());
    EVERLONG_ASSIGN_OR_RETURN(count, reader.Number<uint64_t>());
  }
  EVERLONG_ASSIGN_OR_RETURN(entry.values, ValuesOf(reader, static_cast<ValueType>(type), count));
  entry.type = static_cast<int32_t>(type);
  return entry;
}

// Read a tensor's name, shape and format. Its offset is from where the tensors begin.
Result<GgufTensor> TensorOf(Reader& reader) {
  GgufTensor tensor;
  EVERLONG_ASSIGN_OR_RETURN(tensor.name, reader.Name());
  EVERLONG_ASSIGN_OR_RETURN(const auto dimensions, reader.Number<uint32_t>());
  if (dimensions < 1 || dimensions > kMostDimensions) {
    return reader.Corrupt("its tensor " + tensor.name + " has " + std::to_string(dimensions) + " dimensions");
  }
  int64_t elements = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    EVERLONG_ASSIGN_OR_RETURN(const auto size, reader.Number<uint64_t>());
    if (size < 1 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / elements)) {
      return reader.Corrupt("its tensor " + tensor.name + " has a size of " + std::to_string(size));
    }
    elements *= static_cast<int64_t>(size);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  EVERLONG_ASSIGN_OR_RETURN(tensor.type, reader.Number<int32_t>());
  EVERLONG_ASSIGN_OR_RETURN(const auto offset, reader.Number<uint64_t>());
  if (offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return reader.Corrupt("its tensor " + tensor.name + " begins at " + std::to_string(offset));
  }
  tensor.offset = static_cast<int64_t>(offset);
  const BlockShape shape = StoredShapeOf(tensor.type);
  if (shape.elements == 0) return tensor;
  if (elements / shape.elements > std::numeric_limits<int64_t>::max() / shape.bytes) {
    return reader.Corrupt("its tensor " + tensor.name + " has more bytes than any file");
  }
  if (tensor.shape.back() % shape.elements != 0) {
    return reader.Corrupt("rows of its tensor " + tensor.name + " have " + std::to_string(tensor.shape.back()) +
                          " elements, no whole blocks of " + std::to_string(shape.elements));
  }
  tensor.bytes = elements / shape.elements * shape.bytes;
  return tensor;
}

// Read the metadata. No key is there twice: which of the two holds would be a matter of the reader.
Result<std::vector<GgufEntry>> EntriesOf(Reader& reader, uint64_t count) {
  if (count > kMostEntries) return reader.Corrupt("it has " + std::to_string(count) + " entries of metadata");
  std::vector<GgufEntry> entries;
  std::unordered_set<std::string> keys;
  for (uint64_t i = 0; i < count; ++i) {
    EVERLONG_ASSIGN_OR_RETURN(GgufEntry entry, EntryOf(reader));
    if (!keys.insert(entry.key).second) return reader.Corrupt("its metadata has the key " + entry.key + " twice");
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::vector<GgufTensor>> TensorsOf(Reader& reader, uint64_t count) {
  if (count > kMostTensors) return reader.Corrupt("it has " + std::to_string(count) + " tensors");
  std::vector<GgufTensor> tensors;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    EVERLONG_ASSIGN_OR_RETURN(GgufTensor tensor, TensorOf(reader));
    if (!names.insert(tensor.name).second) return reader.Corrupt("it has two tensors " + tensor.name);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Result<int64_t> AlignmentOf(const Reader& reader, const std::vector<GgufEntry>& metadata) {
  for (const GgufEntry& entry : metadata) {
    if (entry.key != "general.alignment") continue;
    const auto* numbers = std::get_if<std::vector<int64_t>>(&entry.values);
    const bool is_number = static_cast<ValueType>(entry.type) == ValueType::kUint32 && !entry.is_array;
    if (!is_number || numbers == nullptr || !std::has_single_bit(static_cast<uint32_t>(numbers->front())) ||
        numbers->front() > kMostAlignment) {
      return reader.Corrupt("its general.alignment is no power of two of 32 bits, at most " +
                            std::to_string(kMostAlignment));
    }
    return numbers->front();
  }
  return kDefaultAlignment;
}

// Require that a tensor lies in the `room` bytes of the tensors, at a multiple of the alignment.
Status RequireInside(const Reader& reader, const GgufTensor& tensor, int64_t room, int64_t alignment) {
  const int64_t bytes = std::max<int64_t>(tensor.bytes, 0);
  if (bytes > room || tensor.offset > room - bytes) {
    return reader.Corrupt("it ends before its tensor " + tensor.name + ", which begins at " +
                          std::to_string(tensor.offset) + " of its data and has " + std::to_string(bytes) + " bytes");
  }
  if (tensor.offset % alignment == 0) return OkStatus();
  return reader.Corrupt("its tensor " + tensor.name + " begins at " + std::to_string(tensor.offset) +
                        " of its data, expected a multiple of " + std::to_string(alignment));
}

// Require that no two tensors have a byte in common. Of those whose size is unknown only the beginnings count.
Status RequireApart(const Reader& reader, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> sorted;
  for (const GgufTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, [](const GgufTensor* tensor) { return tensor->offset; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const GgufTensor& before = *sorted[i - 1];
    if (sorted[i]->offset - before.offset >= std::max<int64_t>(before.bytes, 1)) continue;
    return reader.Corrupt("its tensors " + before.name + " and " + sorted[i]->name + " overlap");
  }
  return OkStatus();
}

// Put the tensors' offsets at the beginning of the file, and require that each has its own place in it.
Status Place(const Reader& reader, int64_t file_size, int64_t alignment, GgufFile& file) {
  file.data_offset = (reader.position() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : file.tensors) {
    EVERLONG_RETURN_IF_ERROR(RequireInside(reader, tensor, file_size - file.data_offset, alignment));
    tensor.offset += file.data_offset;
  }
  return RequireApart(reader, file.tensors);
}

// Open a file for reading: whatever else has that name is refused, and nobody waits for a pipe's writer.
Result<UniqueFd> OpenRegular(const FilePath& path) {
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd opened, OpenFile(path, O_RDONLY | O_NONBLOCK, Names::kAny));
  struct stat status = {};
  if (::fstat(opened.get(), &status) != 0) return ErrnoError("cannot look at", path, errno);
  if (!S_ISREG(status.st_mode)) return CorruptError("'" + path.string() + "' is no file");
  return opened;
}

}  // namespace

Result<GgufFile> ReadGguf(const FilePath& path) {
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd opened, OpenRegular(path));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(opened, path));
  Reader reader(std::move(opened), path, size);
  char magic[sizeof(kMagic)];
  EVERLONG_RETURN_IF_ERROR(reader.Read(std::as_writable_bytes(std::span(magic))));
  if (std::memcmp(magic, kMagic, sizeof(kMagic)) != 0) return reader.Corrupt("it does not begin with GGUF");
  EVERLONG_ASSIGN_OR_RETURN(const auto version, reader.Number<uint32_t>());
  if (version != 2 && version != 3) {
    return reader.Corrupt("its version is " + std::to_string(version) + ", expected 2 or 3 in little-endian order");
  }
  EVERLONG_ASSIGN_OR_RETURN(const auto tensors, reader.Number<uint64_t>());
  EVERLONG_ASSIGN_OR_RETURN(const auto entries, reader.Number<uint64_t>());
  GgufFile file;
  EVERLONG_ASSIGN_OR_RETURN(file.metadata, EntriesOf(reader, entries));
  EVERLONG_ASSIGN_OR_RETURN(file.tensors, TensorsOf(reader, tensors));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t alignment, AlignmentOf(reader, file.metadata));
  EVERLONG_RETURN_IF_ERROR(Place(reader, size, alignment, file));
  return file;
}

}  // namespace everlong::weights
