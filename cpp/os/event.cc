#include "everlong/os/event.h"

#include <array>

#include "everlong/base/check.h"

namespace everlong::os {
namespace {

constexpr std::array<std::string_view, 18> kNames{"archive",
                                                  "evict",
                                                  "recall",
                                                  "recall waits",
                                                  "restore",
                                                  "left out",
                                                  "clear",
                                                  "resume",
                                                  "summarize signal",
                                                  "retrieve signal",
                                                  "signal passed over",
                                                  "anchor",
                                                  "anchor dropped",
                                                  "tombstone",
                                                  "tombstones merged",
                                                  "trim",
                                                  "trim again",
                                                  "kept dropped"};
static_assert(kNames.size() == static_cast<size_t>(EventKind::kKeptDropped) + 1);

}  // namespace

std::string_view NameOf(EventKind kind) { return kNames.at(static_cast<size_t>(kind)); }

}  // namespace everlong::os
