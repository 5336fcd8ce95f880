#include "everlong/os/segmenter.h"

#include <algorithm>
#include <string>

#include "at_least.h"
#include "everlong/base/check.h"

namespace everlong::os {
Status Validate(const SegmenterConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("block_tokens", config.block_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("least_tokens", config.least_tokens, 0));
  return AtLeast("cooldown_tokens", config.cooldown_tokens, 0);
}

void Segmenter::Note(const Boundary& boundary) {
  EVERLONG_CHECK(noted_.empty() || noted_.back().position <= boundary.position);
  noted_.push_back(boundary);
}

std::optional<ClosedBlock> Segmenter::BlockFrom(int64_t begin, int64_t stream_end) {
  const int64_t last = begin + config_.block_tokens;
  const int64_t slack = config_.block_tokens / kSoftEndShare;
  int64_t soft_end = last;
  auto soft_kind = BoundaryKind::kSentence;
  bool has_soft = false;
  for (const Boundary& boundary : noted_) {
    if (boundary.position <= begin) continue;
    if (boundary.position > std::min(last, stream_end)) break;
    const bool long_enough = boundary.position - begin >= config_.least_tokens;
    if (boundary.kind == BoundaryKind::kTurn && long_enough) return ClosedBlock{{begin, boundary.position}, true};
    if (boundary.kind == BoundaryKind::kSignal && boundary.position >= cooldown_until_) {
      if (long_enough) return ClosedBlock{{begin, boundary.position}, true};
      cooldown_until_ = boundary.position + config_.cooldown_tokens;
    }
    const bool soft = boundary.kind <= BoundaryKind::kParagraph && last - boundary.position <= slack;
    if (soft && (!has_soft || boundary.kind >= soft_kind)) {
      has_soft = true;
      soft_end = boundary.position;
      soft_kind = boundary.kind;
    }
  }
  if (stream_end < last) return std::nullopt;
  return ClosedBlock{{begin, soft_end}, false};
}

std::vector<ClosedBlock> Segmenter::Cut(int64_t open_from, int64_t stream_end) {
  std::vector<ClosedBlock> blocks;
  int64_t begin = open_from;
  while (const std::optional<ClosedBlock> block = BlockFrom(begin, stream_end)) {
    blocks.push_back(*block);
    begin = block->span.end;
  }
  std::erase_if(noted_, [begin](const Boundary& boundary) { return boundary.position <= begin; });
  return blocks;
}

std::vector<ClosedBlock> Segmenter::CutAll(int64_t open_from, int64_t stream_end) {
  std::vector<ClosedBlock> blocks = Cut(open_from, stream_end);
  const int64_t rest = blocks.empty() ? open_from : blocks.back().span.end;
  if (rest < stream_end) blocks.push_back({{rest, stream_end}, true});
  if (!blocks.empty()) blocks.back().ends_topic = true;
  std::erase_if(noted_, [stream_end](const Boundary& boundary) { return boundary.position <= stream_end; });
  return blocks;
}

void Segmenter::Restart() { noted_.clear(); }

}  // namespace everlong::os
