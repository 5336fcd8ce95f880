// What makes the kinds of parts in this library (EVERLONG_INDEX_PARTS).
#pragma once

#include "everlong/index/index_part.h"
#include "everlong/index/part_kinds.h"

namespace everlong::index {

#define EVERLONG_DECLARE_KIND(Name) PartKind Name##Kind();
EVERLONG_INDEX_PARTS(EVERLONG_DECLARE_KIND)
#undef EVERLONG_DECLARE_KIND

}  // namespace everlong::index
