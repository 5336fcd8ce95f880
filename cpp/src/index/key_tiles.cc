#include "everlong/index/key_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "bfloat16.h"

namespace everlong::index {
namespace {

// Small memories stay small; large ones get slabs that cost no more than their unused end.
constexpr size_t kFirstSlabWords = size_t{1} << 14;
constexpr size_t kLargestSlabWords = size_t{1} << 21;

}  // namespace

KeyTiles::KeyTiles(int32_t key_heads, int32_t head_dim)
    : key_heads_(key_heads), head_dim_(head_dim), longest_(static_cast<size_t>(key_heads), 0.0) {
  EVERLONG_CHECK(key_heads >= 0 && head_dim > 0);
}

uint32_t* KeyTiles::Reserve(size_t words) {
  if (slab_words_ - slab_used_ < words) {
    slab_words_ = std::max(words, std::clamp(total_words_, kFirstSlabWords, kLargestSlabWords));
    slabs_.emplace_back(new (std::align_val_t(kAlignment)) uint32_t[slab_words_]);
    slab_used_ = 0;
    total_words_ += slab_words_;
  }
  uint32_t* reserved = slabs_.back().get() + slab_used_;
  slab_used_ += words;
  return reserved;
}

Status KeyTiles::Add(std::span<const float> keys, int32_t tokens) {
  EVERLONG_CHECK(tokens >= 1);
  EVERLONG_CHECK(keys.size() ==
                 static_cast<size_t>(key_heads_) * static_cast<size_t>(tokens) * static_cast<size_t>(head_dim_));
  const auto bad = std::ranges::find_if_not(keys, FiniteAsBf16);
  if (bad != keys.end()) return InvalidArgumentError("key is " + std::to_string(*bad) + ", expected a finite bf16");
  if (key_heads_ == 0) {
    pages_.push_back({nullptr, tokens});
    return OkStatus();
  }
  const size_t tiles = (static_cast<size_t>(tokens) + kTileTokens - 1) / kTileTokens;
  uint32_t* const page = Reserve(static_cast<size_t>(key_heads_) * tiles * TileSize());
  std::fill_n(page, static_cast<size_t>(key_heads_) * tiles * TileSize(), 0U);
  const float* key = keys.data();
  for (size_t head = 0; head < static_cast<size_t>(key_heads_); ++head) {
    for (size_t token = 0; token < static_cast<size_t>(tokens); ++token) {
      uint32_t* const tile = page + (head * tiles + token / kTileTokens) * TileSize();
      double square = 0;
      for (size_t i = 0; i < static_cast<size_t>(head_dim_); ++i, ++key) {
        const uint32_t bf16 = ToBf16(*key);
        tile[i / 2 * kTileTokens + token % kTileTokens] |= bf16 << (i % 2 * 16);
        const double value = std::bit_cast<float>(bf16 << 16);
        square += value * value;
      }
      longest_[head] = std::max(longest_[head], std::sqrt(square));
    }
  }
  pages_.push_back({page, tokens});
  return OkStatus();
}

void KeyTiles::AddWords(std::span<const uint32_t> words, int32_t tokens) {
  EVERLONG_CHECK(tokens >= 1 && words.size() == PageWords(tokens));
  uint32_t* const page = words.empty() ? nullptr : Reserve(words.size());
  std::ranges::copy(words, page);
  pages_.push_back({page, tokens});
}

std::span<const uint32_t> KeyTiles::words(int32_t page) const {
  return {pages_[static_cast<size_t>(page)].keys, PageWords(tokens(page))};
}

const uint32_t* KeyTiles::keys(int32_t page, int32_t key_head) const {
  return pages_[static_cast<size_t>(page)].keys +
         static_cast<size_t>(key_head) * static_cast<size_t>(tiles(page)) * TileSize();
}

void KeyTiles::Decode(int32_t page, int32_t key_head, std::span<float> out) const {
  EVERLONG_CHECK(std::ssize(out) == int64_t{tokens(page)} * head_dim_);
  const uint32_t* const words = keys(page, key_head);
  const auto dim = static_cast<size_t>(head_dim_);
  for (size_t token = 0; token < out.size() / dim; ++token) {
    const uint32_t* const tile = words + token / kTileTokens * TileSize() + token % kTileTokens;
    for (size_t i = 0; i < dim; ++i) {
      const uint32_t pair = tile[i / 2 * kTileTokens];
      out[token * dim + i] = std::bit_cast<float>(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
    }
  }
}

int64_t KeyTiles::bytes() const {
  return static_cast<int64_t>(total_words_ * sizeof(uint32_t) + pages_.capacity() * sizeof(Page));
}

}  // namespace everlong::index
