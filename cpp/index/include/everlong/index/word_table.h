// Which words token ids spell. A tokenizer cuts a rare word, a name or a number into tokens that are common, and spells
// a word in several ways: at the beginning of a line, or with a capital. So a search by token ids hardly tells a rare
// name from others. Words do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::index {

// What a token says. Spaces around it are left out, and letters are folded as the caller likes: two tokens that say the
// same are one.
struct TokenPiece {
  std::string text;
  bool begins_within = false;  // it goes on with a word, where the token before it has not ended one
  bool ends_within = false;    // the token behind it may go on with its last word
};

// Immutable, so thread-safe.
class WordTable {
 public:
  // kInvalidArgument without pieces.
  static Result<std::shared_ptr<const WordTable>> Make(std::span<const TokenPiece> pieces);

  // A word, as a number of 31 bits: a hash of what its tokens say. Two words have one by a chance of one in 2^31.
  struct Word {
    int32_t term = 0;
    size_t first = 0;  // its first token, and one past its last
    size_t last = 0;
  };
  // Return the words of token ids in order. A token that says nothing is in no word and ends one. An id that has no
  // piece is a word of its own.
  [[nodiscard]] std::vector<Word> Words(std::span<const int32_t> token_ids) const;
  // Return the number of the word that a token would be alone.
  [[nodiscard]] int32_t TermOf(int32_t token_id) const;

  [[nodiscard]] uint32_t digest() const { return digest_; }  // of all pieces
  bool operator==(const WordTable& other) const { return pieces_ == other.pieces_ && texts_ == other.texts_; }

 private:
  struct Piece {
    uint32_t first = 0;  // of its bytes in texts_
    uint32_t bytes = 0;
    bool begins_within = false;
    bool ends_within = false;
    bool operator==(const Piece&) const = default;
  };

  std::vector<Piece> pieces_;  // by token id
  std::string texts_;
  uint32_t digest_ = 0;
};

}  // namespace everlong::index
