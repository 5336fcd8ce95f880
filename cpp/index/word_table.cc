#include "everlong/index/word_table.h"

#include <array>
#include <utility>

#include "everlong/base/crc32c.h"

namespace everlong::index {
namespace {

// FNV-1a, 64 bits, continued.
constexpr uint64_t kOffset = 0xcbf29ce484222325;
constexpr uint64_t kPrime = 0x100000001b3;
uint64_t Hashed(std::string_view text, uint64_t hash) {
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * kPrime;
  return hash;
}

int32_t Folded(uint64_t hash) { return static_cast<int32_t>((hash ^ (hash >> 32U)) & INT32_MAX); }

}  // namespace

Result<std::shared_ptr<const WordTable>> WordTable::Make(std::span<const TokenPiece> pieces) {
  if (pieces.empty()) return InvalidArgumentError("pieces are none, expected one for each token");
  auto table = std::make_shared<WordTable>();
  table->pieces_.reserve(pieces.size());
  for (const TokenPiece& piece : pieces) {
    const auto first = static_cast<uint32_t>(table->texts_.size());
    table->pieces_.push_back({first, static_cast<uint32_t>(piece.text.size()), piece.begins_within, piece.ends_within});
    table->texts_ += piece.text;
    const std::array<uint8_t, 3> ends{0, static_cast<uint8_t>(piece.begins_within),
                                      static_cast<uint8_t>(piece.ends_within)};
    table->digest_ = Crc32c(std::as_bytes(std::span(piece.text)), table->digest_);
    table->digest_ = Crc32c(std::as_bytes(std::span(ends)), table->digest_);
  }
  return std::shared_ptr<const WordTable>(std::move(table));
}

std::vector<WordTable::Word> WordTable::Words(std::span<const int32_t> token_ids) const {
  std::vector<Word> words;
  words.reserve(token_ids.size());
  uint64_t hash = kOffset;
  bool within = false;  // the last word may go on
  for (size_t at = 0; at < token_ids.size(); ++at) {
    const auto id = static_cast<size_t>(token_ids[at]);
    const Piece piece = token_ids[at] >= 0 && id < pieces_.size() ? pieces_[id] : Piece{};
    if (piece.bytes == 0) {
      within = false;
      if (token_ids[at] < 0 || id >= pieces_.size()) words.push_back({token_ids[at], at, at + 1});
      continue;
    }
    if (!within || !piece.begins_within) {
      hash = kOffset;
      words.push_back({0, at, at});
    }
    hash = Hashed(std::string_view(texts_).substr(piece.first, piece.bytes), hash);
    words.back().term = Folded(hash);
    words.back().last = at + 1;
    within = piece.ends_within;
  }
  return words;
}

int32_t WordTable::TermOf(int32_t token_id) const {
  const auto id = static_cast<size_t>(token_id);
  if (token_id < 0 || id >= pieces_.size()) return token_id;
  return Folded(Hashed(std::string_view(texts_).substr(pieces_[id].first, pieces_[id].bytes), kOffset));
}

}  // namespace everlong::index
