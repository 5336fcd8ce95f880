// The kinds of parts in this library. NAME_part.cc defines its NameKind(), block_vectors_part.cc those of MeanPool and
// Hnsw, meaning_part.cc that of Encoder, too.
#pragma once

#include "everlong/index/part_kinds.h"

// One line a kind, in the order of IndexPart::number.
#define EVERLONG_BUILT_IN_PARTS(Part) \
  Part(Heads);                        \
  Part(Lexical);                      \
  Part(MeanPool);                     \
  Part(Hnsw);                         \
  Part(Embedding);                    \
  Part(Meaning);                      \
  Part(Encoder)

namespace everlong::index {

#define EVERLONG_DECLARE_KIND(Name) PartKind Name##Kind()
EVERLONG_BUILT_IN_PARTS(EVERLONG_DECLARE_KIND);
#undef EVERLONG_DECLARE_KIND

}  // namespace everlong::index
