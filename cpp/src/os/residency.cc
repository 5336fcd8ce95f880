#include "everlong/os/residency.h"

#include <algorithm>
#include <string>

#include "at_least.h"

namespace everlong::os {
Status Validate(const ResidencyConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("frame_tokens", config.frame_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("sink_tokens", config.sink_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("recalled_tokens", config.recalled_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("rolling_tokens", config.rolling_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("evict_tokens", config.evict_tokens, 1));
  const int64_t needed =
      int64_t{config.sink_tokens} + config.recalled_tokens + config.rolling_tokens + config.evict_tokens;
  if (needed >= config.frame_tokens) {
    return InvalidArgumentError("sink_tokens + recalled_tokens + rolling_tokens + evict_tokens is " +
                                std::to_string(needed) + ", expected less than frame_tokens, which is " +
                                std::to_string(config.frame_tokens));
  }
  return OkStatus();
}

int64_t Residency::Room() const {
  return int64_t{config_.frame_tokens} - config_.sink_tokens - config_.recalled_tokens - rolling_.size();
}

int64_t Residency::NextPosition() const { return rolling_position() + rolling_.size(); }

void Residency::Append(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= Room());
  const int64_t to_sinks = evicted_ ? 0 : std::min(tokens, config_.sink_tokens - sinks_);
  sinks_ += to_sinks;
  rolling_.begin += to_sinks;
  rolling_.end += tokens;
}

int64_t Residency::Overflow() const {
  const int64_t over = rolling_.size() - config_.rolling_tokens;
  return over >= config_.evict_tokens ? over : 0;
}

int64_t Residency::Evict(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= rolling_.size());
  const int64_t first_kept = rolling_position() + tokens;
  rolling_.begin += tokens;
  evicted_ = true;
  return rolling_position() - first_kept;
}

void Residency::SetRecalled(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= config_.recalled_tokens);
  EVERLONG_CHECK(evicted_ || tokens == 0);
  recalled_ = tokens;
}

TokenSpan Residency::Resume(int64_t stream_end, int64_t sinks_available, int64_t contiguous_from,
                            std::optional<int64_t> rolling_from) {
  const int64_t all_sinks = std::min<int64_t>(config_.sink_tokens, stream_end);
  sinks_ = std::min(all_sinks, sinks_available);
  // A frame holds less than M + evict_tokens between two calls; more was never in it.
  const int64_t most = int64_t{config_.rolling_tokens} + config_.evict_tokens - 1;
  const int64_t wanted = std::max(rolling_from.value_or(stream_end - config_.rolling_tokens), stream_end - most);
  rolling_.begin = std::min(std::max({sinks_, contiguous_from, wanted}), stream_end);
  rolling_.end = stream_end;
  EVERLONG_CHECK(sinks_ >= 0 && rolling_.begin <= rolling_.end);
  recalled_ = 0;
  evicted_ = sinks_ < all_sinks || rolling_.begin > sinks_;
  return rolling_;
}

int64_t Residency::rolling_position() const {
  return evicted_ ? int64_t{config_.sink_tokens} + config_.recalled_tokens : sinks_;
}

}  // namespace everlong::os
