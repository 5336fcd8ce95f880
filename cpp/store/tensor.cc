#include "everlong/store/tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "json_text.h"

namespace everlong::store {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderAlignment = 8;
constexpr const char* kMetadata = "__metadata__";  // reserved by safetensors

struct ElementBytes {
  std::string_view dtype;
  int64_t bytes;
};
constexpr std::array<ElementBytes, 12> kElements = {{{"F64", 8},
                                                     {"F32", 4},
                                                     {"F16", 2},
                                                     {"BF16", 2},
                                                     {"F8_E4M3", 1},
                                                     {"F8_E5M2", 1},
                                                     {"I64", 8},
                                                     {"I32", 4},
                                                     {"I16", 2},
                                                     {"I8", 1},
                                                     {"U8", 1},
                                                     {"BOOL", 1}}};

// Return the bytes of a tensor of that dtype and shape; none when it has no such size.
std::optional<int64_t> TensorBytes(std::string_view dtype, std::span<const int64_t> shape) {
  int64_t bytes = TensorElementBytes(dtype);
  if (bytes == 0) return std::nullopt;
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size)) return std::nullopt;
    bytes *= size;
  }
  return bytes;
}

// What the header says of a tensor; none where it does not say it, or has another type.
struct Member {
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

// Collects the header's members.
class HeaderVisitor : public JsonVisitor {
 public:
  void Key(int64_t depth, std::string_view key) override {
    if (depth == 1) name_ = key;
    if (depth == 2) field_ = key;
  }
  void Value(int64_t depth, const JsonValue& value) override {
    if (depth == 0) {
      is_object_ = value.kind == JsonKind::kObject;
    } else if (depth == 1) {
      member_ = name_ == kMetadata ? nullptr : &(members_[name_] = {});
      field_.clear();
      sizes_ = nullptr;
    } else if (member_ == nullptr) {
      return;
    } else if (depth == 2) {
      Field(value);
    } else if (depth == 3 && sizes_ != nullptr && *sizes_) {
      if (value.kind == JsonKind::kUnsigned && std::in_range<int64_t>(value.number)) {
        (*sizes_)->push_back(static_cast<int64_t>(value.number));
      } else {
        sizes_->reset();
      }
    }
  }

  [[nodiscard]] bool is_object() const { return is_object_; }
  [[nodiscard]] std::map<std::string, Member>& members() { return members_; }

 private:
  void Field(const JsonValue& value) {
    sizes_ = nullptr;
    if (field_ == "dtype") {
      member_->dtype.reset();
      if (value.kind == JsonKind::kText) member_->dtype = value.text;
    } else if (field_ == "shape" || field_ == "data_offsets") {
      sizes_ = field_ == "shape" ? &member_->shape : &member_->offsets;
      sizes_->reset();
      if (value.kind == JsonKind::kArray) sizes_->emplace();
    }
  }

  bool is_object_ = false;
  std::map<std::string, Member> members_;
  std::string name_;
  Member* member_ = nullptr;  // the current one; nullptr: none, or the metadata
  std::string field_;
  std::optional<std::vector<int64_t>>* sizes_ = nullptr;  // of `member_`, where the field is one of them
};

// Return one member of the header, placed from the first of the `data_bytes`; none if it does not describe some.
std::optional<TensorPlace> DecodeMember(const std::string& name, Member&& member, size_t data_bytes) {
  if (!member.dtype || !member.shape || !member.offsets || member.offsets->size() != 2) return std::nullopt;
  const std::optional<int64_t> bytes = TensorBytes(*member.dtype, *member.shape);
  const auto begin = static_cast<size_t>((*member.offsets)[0]);
  const auto end = static_cast<size_t>((*member.offsets)[1]);
  if (!bytes || begin > end || end > data_bytes || end - begin != static_cast<size_t>(*bytes)) return std::nullopt;
  return TensorPlace{{name, *std::move(member.dtype), *std::move(member.shape), *bytes}, static_cast<int64_t>(begin)};
}

Status Unfit(const TensorView& tensor, const std::string& what) {
  return InvalidArgumentError("tensor '" + tensor.name + "': " + what);
}

// Check everything but the names.
Status ValidateOne(const TensorView& tensor) {
  const std::optional<int64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes) return Unfit(tensor, "no tensor has dtype '" + tensor.dtype + "' and this shape");
  if (static_cast<int64_t>(tensor.bytes.size()) != *bytes) {
    return Unfit(tensor, std::to_string(tensor.bytes.size()) + " bytes, expected " + std::to_string(*bytes));
  }
  return OkStatus();
}

// Return the header's JSON.
Result<std::string> HeaderOf(std::span<const TensorView> tensors) {
  std::map<std::string_view, std::string> members;
  int64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == kMetadata) return Unfit(tensor, "the name is reserved");
    if (members.contains(tensor.name)) return Unfit(tensor, "given twice");
    EVERLONG_RETURN_IF_ERROR(ValidateOne(tensor));
    std::optional<std::string> member = JsonText(tensor.name);
    if (!member) return InvalidArgumentError("a tensor's name is not valid UTF-8");
    const int64_t end = offset + std::ssize(tensor.bytes);
    *member += ":{\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "],\"dtype\":\"" +
               tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      *member += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
    }
    members.emplace(tensor.name, *std::move(member) + "]}");
    offset = end;
  }
  std::string text = "{";
  for (const auto& [name, member] : members) text += (text.size() == 1 ? "" : ",") + member;
  return text + "}";
}

}  // namespace

int64_t TensorElementBytes(std::string_view dtype) {
  const auto found = std::find_if(kElements.begin(), kElements.end(),
                                  [dtype](const ElementBytes& element) { return element.dtype == dtype; });
  return found == kElements.end() ? 0 : found->bytes;
}

std::vector<TensorView> ViewsOf(std::span<const Tensor> tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const Tensor& tensor : tensors) views.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  return views;
}

Status ValidateTensors(std::span<const TensorView> tensors) {
  const auto too_many = [](const std::string& what, int64_t count, int64_t most) {
    return InvalidArgumentError(what + ": " + std::to_string(count) + ", expected at most " + std::to_string(most));
  };
  if (std::ssize(tensors) > kMaxBlockTensors)
    return too_many("tensors of a block", std::ssize(tensors), kMaxBlockTensors);
  int64_t bytes = 0;
  for (const TensorView& tensor : tensors) {
    if (tensor.name.empty()) return InvalidArgumentError("a tensor of a block has no name");
    const std::string of = " of tensor '" + tensor.name + "'";
    if (std::ssize(tensor.name) > kMaxTensorName) {
      return too_many("bytes of the name" + of, std::ssize(tensor.name), kMaxTensorName);
    }
    if (std::ssize(tensor.shape) > kMaxTensorDimensions) {
      return too_many("dimensions" + of, std::ssize(tensor.shape), kMaxTensorDimensions);
    }
    bytes += std::ssize(tensor.bytes);
  }
  if (bytes > kMaxBlockTensorBytes) return too_many("bytes of a block's tensors", bytes, kMaxBlockTensorBytes);
  return HeaderOf(tensors).status();
}

Result<std::vector<std::byte>> EncodeTensors(std::span<const TensorView> tensors) {
  EVERLONG_ASSIGN_OR_RETURN(std::string text, HeaderOf(tensors));
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::vector<std::byte> out(kLengthBytes + text.size());
  const uint64_t length = text.size();
  std::memcpy(out.data(), &length, kLengthBytes);
  std::memcpy(out.data() + kLengthBytes, text.data(), text.size());
  size_t bytes = out.size();
  for (const TensorView& tensor : tensors) bytes += tensor.bytes.size();
  out.reserve(bytes);
  for (const TensorView& tensor : tensors) out.insert(out.end(), tensor.bytes.begin(), tensor.bytes.end());
  return out;
}

Result<std::vector<TensorPlace>> ListTensors(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (bytes.size() < kLengthBytes || length > bytes.size() - kLengthBytes) {
    return CorruptError("tensors: the header ends behind the last byte");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  HeaderVisitor header;
  if (!VisitJson({text, static_cast<size_t>(length)}, header) || !header.is_object()) {
    return CorruptError("tensors: the header is not a JSON object");
  }
  const size_t data_begin = kLengthBytes + static_cast<size_t>(length);
  const size_t data_bytes = bytes.size() - data_begin;
  std::vector<TensorPlace> places;
  size_t total = 0;  // tensors share no bytes, so a small file never becomes large in memory
  for (auto& [name, member] : header.members()) {
    std::optional<TensorPlace> place = DecodeMember(name, std::move(member), data_bytes);
    if (place) total += static_cast<size_t>(place->info.bytes);
    if (!place || total > data_bytes) return CorruptError("tensors: '" + name + "' does not fit the data");
    place->begin += static_cast<int64_t>(data_begin);
    places.push_back(*std::move(place));
  }
  return places;
}

Result<std::vector<Tensor>> DecodeTensors(std::span<const std::byte> bytes) {
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorPlace> places, ListTensors(bytes));
  std::vector<Tensor> tensors;
  tensors.reserve(places.size());
  for (TensorPlace& place : places) {
    const std::span<const std::byte> own =
        bytes.subspan(static_cast<size_t>(place.begin), static_cast<size_t>(place.info.bytes));
    tensors.push_back({std::move(place.info.name),
                       std::move(place.info.dtype),
                       std::move(place.info.shape),
                       {own.begin(), own.end()}});
  }
  return tensors;
}

}  // namespace everlong::store
