// The zones of a frame, in the order of their slots, and their settings.
#pragma once

#include <cstdint>

#include "everlong/base/status.h"
#include "everlong/os/kept_config.h"
#include "everlong/os/zone.h"

namespace everlong::os {

struct ResidencyConfig {
  int32_t frame_tokens = 4096;     // F: slots of the frame, and the largest frame position
  int32_t sink_tokens = 16;        // S; 16 measured better than 5
  int32_t recalled_tokens = 1024;  // R: budget of the recalled zone
  int32_t rolling_tokens = 1024;   // M: eviction never makes rolling shorter than this
  int32_t evict_tokens = 256;      // rolling is cut back to M once it is over by this much
  // Off by default: the first K tokens of each of the newest topics that left the frame, and tombstones, each the mean
  // K and V of what left. A slots together.
  int32_t anchor_tokens = 0;  // K
  int32_t anchors = 8;        // topics
  int32_t tombstones = 0;
  KeptConfig kept = {};  // off by default; N slots
};

// kInvalidArgument unless all are positive (S, R, K, N, anchors and tombstones may be 0), and the zones and M +
// evict_tokens leave a slot of the frame.
Status Validate(const ResidencyConfig& config);

// Return the frame's zones. Rolling lies behind the last one.
ZoneList MakeZones(const ResidencyConfig& config);

}  // namespace everlong::os
