#include "everlong/os/zones.h"

#include <string>

#include "anchors.h"
#include "at_least.h"
#include "kept_zone.h"
#include "recalled.h"
#include "sinks.h"
#include "tombstones.h"

namespace everlong::os {

ZoneList MakeZones(const ResidencyConfig& config) {
  ZoneList zones;
  zones.Add(std::make_unique<Sinks>(config.sink_tokens));
  zones.Add(std::make_unique<Tombstones>(config.tombstones));
  zones.Add(std::make_unique<Anchors>(config.anchor_tokens, config.anchors));
  zones.Add(std::make_unique<KeptZone>(config.kept));
  zones.Add(std::make_unique<Recalled>(config.recalled_tokens));
  return zones;
}

Status Validate(const ResidencyConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("frame_tokens", config.frame_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("sink_tokens", config.sink_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("recalled_tokens", config.recalled_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("rolling_tokens", config.rolling_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("evict_tokens", config.evict_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("anchor_tokens", config.anchor_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("anchors", config.anchors, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("tombstones", config.tombstones, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("kept_tokens", config.kept.tokens, 0));
  int64_t needed = int64_t{config.rolling_tokens} + config.evict_tokens;
  for (const auto& zone : MakeZones(config)) needed += zone->budget();
  if (needed < config.frame_tokens) return OkStatus();
  const bool copies = int64_t{config.anchor_tokens} * config.anchors + config.tombstones > 0;
  return InvalidArgumentError("sink_tokens" + std::string(copies ? " + anchor_tokens * anchors + tombstones" : "") +
                              (config.kept.tokens > 0 ? " + kept_tokens" : "") +
                              " + recalled_tokens + rolling_tokens + evict_tokens is " + std::to_string(needed) +
                              ", expected less than frame_tokens, which is " + std::to_string(config.frame_tokens));
}

}  // namespace everlong::os
