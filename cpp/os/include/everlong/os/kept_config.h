// The settings of the zone "kept": chosen tokens of closed blocks that stay when their block is evicted.
//
// At a block's end its best tokens are chosen. They stay in rolling with the others, and enter the zone when they leave
// rolling. As blocks age, a ladder trims them again: each rung keeps half of the one before. Every rung has an equal
// share of the slots. So a zone of N slots spans about N * share * (2^rungs - 1) / rungs tokens of text. N = 3,456, one
// token of 8 and 4 rungs span 103,680.
#pragma once

#include <cstdint>

#include "everlong/base/status.h"

namespace everlong::os {

struct KeptConfig {
  int32_t tokens = 0;  // N: slots of the zone; 0: off
  int32_t share = 8;   // a block that was just closed keeps one of so many tokens: 64 of 512
  int32_t rungs = 4;   // of the ladder: 64, 32, 16, 8 of 512
};

// kInvalidArgument unless tokens >= 0, share and rungs are positive, rungs <= kMostRungs, and the zone holds the first
// choice of a block of `block_tokens`.
Status Validate(const KeptConfig& config, int64_t block_tokens);

inline constexpr int32_t kMostRungs = 16;

}  // namespace everlong::os
