// What the Memory OS decided, by kind.
#pragma once

#include <cstdint>
#include <string_view>

namespace everlong::os {

enum class EventKind : uint8_t {
  kArchive,
  kEvict,
  kRecall,
  kRecallWaits,  // what came back last is protected
  kRestore,
  kLeftOut,  // found tokens that did not fit
  kClear,
  kResume,
  kSummarizeSignal,   // received at span's token
  kRetrieveSignal,    // the same
  kSignalPassedOver,  // too soon after the block's begin or the last signal, or no policy uses it
  // Of the anchors and tombstones:
  kAnchor,            // span's tokens stay
  kAnchorDropped,     // they stay no longer
  kTombstone,         // span's mean stays
  kTombstonesMerged,  // two are now one, of this span
  // Of the zone "kept":
  kTrim,         // so many tokens of span's block were chosen
  kTrimAgain,    // so many of them are left
  kKeptDropped,  // none is left
};
std::string_view NameOf(EventKind kind);  // "archive", "recall waits", "tombstones merged": the enum's words

}  // namespace everlong::os
