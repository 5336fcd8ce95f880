// The part "lexical": BM25 over the words of pages, each page alone and with its neighbours.
#pragma once

#include <memory>

#include "everlong/index/part.h"
#include "everlong/index/word_table.h"

namespace everlong::index {

// Make the part that searches by the words that token ids spell, or, without a table, by token ids as they are.
std::unique_ptr<Part> MakeLexicalPart(const PartContext& context, std::shared_ptr<const WordTable> words);

}  // namespace everlong::index
