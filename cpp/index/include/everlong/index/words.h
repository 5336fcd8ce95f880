// The part "words": BM25 over the words of pages, each page alone and with its neighbours.
#pragma once

#include <memory>

#include "everlong/index/part.h"
#include "everlong/index/word_table.h"

namespace everlong::index {

// A word that no page has is searched by the tokens that spell it.
std::unique_ptr<Part> MakeWordsPart(const PartContext& context, std::shared_ptr<const WordTable> words);

}  // namespace everlong::index
