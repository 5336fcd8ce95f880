#include "key_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "everlong/index/heads.h"
#include "key_codes.h"

namespace everlong::index {
std::string_view NameOf(KeyStorage storage) {
  switch (storage) {
    case KeyStorage::kBf16:
      return "bf16";
    case KeyStorage::kInt8:
      return "int8";
    case KeyStorage::kE4M3:
      return "e4m3";
  }
  return "";
}

KeyTiles::KeyTiles(int32_t key_heads, int32_t head_dim, KeyStorage storage)
    : key_heads_(key_heads), layout_{storage, head_dim}, longest_(static_cast<size_t>(key_heads)) {
  EVERLONG_CHECK(key_heads >= 0 && head_dim > 0);
}

Status KeyTiles::Add(std::span<const float> keys, int32_t tokens) {
  EVERLONG_CHECK(tokens >= 1);
  const size_t head_size = static_cast<size_t>(tokens) * static_cast<size_t>(layout_.head_dim);
  EVERLONG_CHECK(keys.size() == static_cast<size_t>(key_heads_) * head_size);
  const auto bad = std::ranges::find_if_not(keys, FiniteAsBf16);
  if (bad != keys.end()) return InvalidArgumentError("key is " + std::to_string(*bad) + ", expected a finite bf16");
  uint32_t* const words = key_heads_ == 0 ? nullptr : room_.Reserve(PageWords(tokens));
  std::fill_n(words, PageWords(tokens), 0U);
  for (size_t head = 0; head < longest_.size(); ++head) {
    const double longest = Encode(keys.subspan(head * head_size, head_size), words + head * HeadWords(tokens));
    longest_[head] = std::max(longest_[head].load(), longest);
  }
  pages_.push_back({words, tokens, false});
  return OkStatus();
}

double KeyTiles::Encode(std::span<const float> keys, uint32_t* words) const {
  const auto dim = static_cast<size_t>(layout_.head_dim);
  const auto tile_words = static_cast<size_t>(layout_.TileWords());
  std::vector<float> scales(dim, 0.0F);
  for (size_t at = 0; at < keys.size(); ++at) scales[at % dim] = std::max(scales[at % dim], std::abs(keys[at]));
  for (float& scale : scales) scale = ScaleOf(layout_.storage, scale);
  if (layout_.storage != KeyStorage::kBf16) {
    std::ranges::transform(scales, words, [](float scale) { return std::bit_cast<uint32_t>(scale); });
  }
  uint32_t* const tiles = words + layout_.ScaleWords();
  double longest = 0;
  for (size_t token = 0; token < keys.size() / dim; ++token) {
    uint32_t* const tile = tiles + token / kTileTokens * tile_words + token % kTileTokens;
    double square = 0;
    for (size_t i = 0; i < dim; ++i) {
      const uint32_t code = EncodeKey(layout_.storage, keys[token * dim + i], 1 / scales[i]);
      const auto [row, shift] = PlaceOf(layout_.storage, static_cast<int32_t>(i));
      tile[row * kTileTokens] |= code << shift;
      const double value = DecodeKey(layout_.storage, code, scales[i]);
      square += value * value;
    }
    longest = std::max(longest, std::sqrt(square));
  }
  return longest;
}

void KeyTiles::AddMapped(std::span<const uint32_t> words, int32_t tokens) {
  EVERLONG_CHECK(tokens >= 1 && words.size() == PageWords(tokens));
  pages_.push_back({words.data(), tokens, true});
}

void KeyTiles::Forget(int32_t page) {
  Page& gone = pages_[page];
  if (gone.words != nullptr) room_.Release({gone.words, PageWords(gone.tokens)});
  gone = {};
}

std::span<const uint32_t> KeyTiles::words(int32_t page) const {
  const Page& at = pages_[page];
  return {at.words, at.tokens == 0 ? 0 : PageWords(at.tokens)};
}

void KeyTiles::Decode(int32_t page, int32_t key_head, std::span<float> out) const {
  EVERLONG_CHECK(std::ssize(out) == int64_t{tokens(page)} * layout_.head_dim);
  const uint32_t* const words = keys(page, key_head);
  const uint32_t* const scale_bits = scales(page, key_head);
  const auto dim = static_cast<size_t>(layout_.head_dim);
  const auto tile_words = static_cast<size_t>(layout_.TileWords());
  const uint32_t mask = CodeMask(layout_.storage);
  for (size_t token = 0; token < out.size() / dim; ++token) {
    const uint32_t* const tile = words + token / kTileTokens * tile_words + token % kTileTokens;
    for (size_t i = 0; i < dim; ++i) {
      const float scale = layout_.storage == KeyStorage::kBf16 ? 1.0F : std::bit_cast<float>(scale_bits[i]);
      const auto [row, shift] = PlaceOf(layout_.storage, static_cast<int32_t>(i));
      out[token * dim + i] = DecodeKey(layout_.storage, tile[row * kTileTokens] >> shift & mask, scale);
    }
  }
}

int64_t KeyTiles::bytes() const { return room_.bytes() + pages_.bytes(); }

}  // namespace everlong::index
