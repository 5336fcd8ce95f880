#include "everlong/os/segmenter.h"

#include <string>

namespace everlong::os {

Status Validate(const SegmenterConfig& config) {
  if (config.block_tokens < 1) {
    return InvalidArgumentError("block_tokens is " + std::to_string(config.block_tokens) + ", expected at least 1");
  }
  return OkStatus();
}

std::vector<TokenSpan> Segmenter::Cut(int64_t open_from, int64_t stream_end) const {
  std::vector<TokenSpan> blocks;
  for (int64_t begin = open_from; stream_end - begin >= config_.block_tokens; begin += config_.block_tokens) {
    blocks.push_back({begin, begin + config_.block_tokens});
  }
  return blocks;
}

std::vector<TokenSpan> Segmenter::CutAll(int64_t open_from, int64_t stream_end) const {
  std::vector<TokenSpan> blocks = Cut(open_from, stream_end);
  const int64_t rest = blocks.empty() ? open_from : blocks.back().end;
  if (rest < stream_end) blocks.push_back({rest, stream_end});
  return blocks;
}

}  // namespace everlong::os
