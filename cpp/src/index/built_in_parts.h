// The kinds of parts that this library brings, each of a file of its own.
#pragma once

#include "everlong/index/part_kinds.h"

namespace everlong::index {

PartKind HeadsKind();
PartKind LexicalKind();
PartKind MeanPoolKind();
PartKind HnswKind();
PartKind EmbeddingKind();

}  // namespace everlong::index
