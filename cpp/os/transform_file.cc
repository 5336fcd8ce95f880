#include "transform_file.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "everlong/base/crc32c.h"
#include "everlong/store/tensor.h"
#include "payloads.h"

namespace everlong::os {
namespace {

using Tensors = std::map<std::string, store::Tensor>;

Status Bad(const std::string& what) { return CorruptError("tables of a transform: " + what); }

template <class Number>
std::vector<Number> NumbersOf(const store::Tensor& tensor) {
  std::vector<Number> numbers(tensor.bytes.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), tensor.bytes.data(), numbers.size() * sizeof(Number));
  return numbers;
}

// Return the numbers of a tensor of this dtype; of any count where `count` is below 0.
template <class Number>
Result<std::vector<Number>> Take(const Tensors& tensors, const std::string& name, std::string_view dtype,
                                 int64_t count = -1) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.dtype != dtype) {
    return Bad("there is no '" + name + "' of " + std::string(dtype));
  }
  std::vector<Number> numbers = NumbersOf<Number>(found->second);
  if (count >= 0 && std::ssize(numbers) != count) {
    return Bad("'" + name + "' has " + std::to_string(numbers.size()) + " numbers, expected " + std::to_string(count));
  }
  return numbers;
}

Result<kv::TransformGroup> GroupOf(const Tensors& tensors, const std::string& name) {
  kv::TransformGroup group;
  EVERLONG_ASSIGN_OR_RETURN(const auto span, Take<int32_t>(tensors, name + "span", "I32", 3));
  EVERLONG_ASSIGN_OR_RETURN(group.mean, Take<float>(tensors, name + "mean", "F32"));
  EVERLONG_ASSIGN_OR_RETURN(group.tables, Take<uint8_t>(tensors, name + "tables", "U8"));
  EVERLONG_ASSIGN_OR_RETURN(group.scales, Take<float>(tensors, name + "scales", "F32"));
  EVERLONG_ASSIGN_OR_RETURN(group.basis, Take<int16_t>(tensors, name + "basis", "I16"));
  group.keys = span[0] == 1;
  group.first_layer = span[1];
  group.layers = span[2];
  return group;
}

Result<std::vector<kv::TransformTable>> TablesOf(const Tensors& tensors) {
  EVERLONG_ASSIGN_OR_RETURN(const auto numbers, Take<int16_t>(tensors, "tables", "I16"));
  constexpr size_t kRow = 1 + kv::kTransformSymbols;
  if (numbers.size() % kRow != 0) return Bad("'tables' has " + std::to_string(numbers.size()) + " numbers");
  std::vector<kv::TransformTable> tables;
  for (size_t at = 0; at < numbers.size(); at += kRow) {
    kv::TransformTable& table = tables.emplace_back();
    table.shift = numbers[at];
    for (size_t i = 0; i < kv::kTransformSymbols; ++i)
      table.frequencies[i] = static_cast<uint16_t>(numbers[at + 1 + i]);
  }
  return tables;
}

}  // namespace

std::string TransformNameOf(std::span<const std::byte> file) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name(kTransformName);
  const uint32_t crc = Crc32c(file);
  for (int shift = 28; shift >= 0; shift -= 4) name += kDigits[crc >> shift & 15U];
  return name;
}

Result<std::shared_ptr<const kv::Transform>> ParseTransform(std::span<const std::byte> file,
                                                            const kv::PayloadLayout& layout, std::string_view weights) {
  EVERLONG_ASSIGN_OR_RETURN(std::vector<store::Tensor> listed, store::DecodeTensors(file));
  Tensors tensors;
  for (store::Tensor& tensor : listed) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }
  EVERLONG_ASSIGN_OR_RETURN(const auto model, Take<char>(tensors, "weights", "U8"));
  EVERLONG_ASSIGN_OR_RETURN(const auto shape, Take<int32_t>(tensors, "shape", "I32", 3));
  const std::string of_tables(model.begin(), model.end());
  if (of_tables != weights || shape != std::vector{layout.layers, layout.kv_heads, layout.head_dim}) {
    return ModelMismatchError("tables of a transform are of the weights '" + of_tables + "' and of " +
                              std::to_string(shape[0]) + " layers x " + std::to_string(shape[1]) + " heads x " +
                              std::to_string(shape[2]) + ", the memory is of '" + std::string(weights) +
                              "' and of another shape or model: fit them to its model");
  }
  EVERLONG_ASSIGN_OR_RETURN(std::vector<kv::TransformTable> tables, TablesOf(tensors));
  std::vector<kv::TransformGroup> groups;
  for (int number = 0; tensors.contains("group" + std::to_string(number) + ".span"); ++number) {
    EVERLONG_ASSIGN_OR_RETURN(kv::TransformGroup group, GroupOf(tensors, "group" + std::to_string(number) + "."));
    groups.push_back(std::move(group));
  }
  auto made = kv::Transform::Make(layout, std::move(groups), std::move(tables));
  if (made.ok()) return made;
  return Bad(made.status().message());
}

}  // namespace everlong::os
