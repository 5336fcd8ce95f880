// The transform codec: keys, or values, of a group of layers as few coefficients of an orthogonal basis.
//
// A token has n = layers * kv_heads * head_dim numbers in a group, in this order. Less a mean and over a scale, they
// are written in a basis that was fitted to the model. Each coefficient is rounded to an integer, its code, and coded
// by rANS (Duda, "Asymmetric numeral systems", 2013) with fixed frequencies. Coefficients that the tables leave out are
// 0. A decoded number is mean + scale * the sum over coefficients of code * basis. The sum is of integers, and the rest
// has one rounding (fused): every instruction set gives the same bits, and so does a page alone. docs/format.md has the
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"

namespace everlong::kv {

inline constexpr int32_t kTransformReach = 15;  // codes -15 to 15 have symbols of their own, shifted as a table says
inline constexpr int32_t kTransformEscape = 2 * kTransformReach + 1;  // the symbol of any other code
inline constexpr int32_t kTransformSymbols = kTransformEscape + 1;
inline constexpr int32_t kTransformFrequencyBits = 12;  // frequencies of a table sum to 2^12
inline constexpr int32_t kTransformMostShift = 11;

// How codes of like spread are coded: code >> shift as a symbol, the bits below as they are.
struct TransformTable {
  int32_t shift = 0;
  std::array<uint16_t, kTransformSymbols> frequencies{};  // of -15, -14 ... 15 and the escape, which has at least 1
};

struct TransformGroup {
  bool keys = true;  // else values
  int32_t first_layer = 0;
  int32_t layers = 0;
  std::vector<float> mean;      // [n]
  std::vector<float> scales;    // [n], > 0: a coefficient's code of 1 adds its basis times these
  std::vector<int16_t> basis;   // [coefficients, n] in units of 2^-15, from -32767 on; at most n coefficients
  std::vector<uint8_t> tables;  // [coefficients]: which table each has
};

// A coded page to decode: layers [first_layer, first_layer + layers) of it, as a page of fp32 of these layers.
struct CodedPage {
  std::span<const std::byte> coded;
  int32_t tokens = 0;
  int32_t first_layer = 0;
  int32_t layers = 0;
  std::span<std::byte> out;
};

// Thread-safe.
class Transform {
 public:
  // `layout` is that of fp32 pages of the same shape. kInvalidArgument where the groups do not cover keys and values of
  // every layer once, or a number is not what a transform has.
  static Result<std::shared_ptr<const Transform>> Make(const PayloadLayout& layout, std::vector<TransformGroup> groups,
                                                       std::vector<TransformTable> tables);
  ~Transform();
  Transform(const Transform&) = delete;
  Transform& operator=(const Transform&) = delete;

  // Return a page of fp32 coded. Its size is a multiple of the layers. kInvalidArgument for a number that no code has.
  [[nodiscard]] Result<std::vector<std::byte>> EncodePage(std::span<const std::byte> page, int32_t tokens) const;
  // Decode pages, each group that has wanted layers. kCorrupt for bytes that EncodePage does not write; what is in the
  // pages' `out` is then unspecified.
  [[nodiscard]] Status DecodePages(std::span<const CodedPage> pages) const;

 private:
  struct Group;
  Transform();
  [[nodiscard]] Status DecodeGroup(const CodedPage& page, size_t group, std::span<const std::byte> stream) const;

  PayloadLayout layout_;
  std::vector<std::unique_ptr<Group>> groups_;
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace everlong::kv
