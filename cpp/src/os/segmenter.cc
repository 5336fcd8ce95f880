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

namespace {

BlockEnd EndAt(BoundaryKind kind) {
  switch (kind) {
    case BoundaryKind::kSentence:
      return BlockEnd::kSentence;
    case BoundaryKind::kParagraph:
      return BlockEnd::kParagraph;
    case BoundaryKind::kTurn:
      return BlockEnd::kTurn;
    case BoundaryKind::kSignal:
      return BlockEnd::kSignal;
  }
  EVERLONG_CHECK(false);
}

}  // namespace

std::optional<ClosedBlock> Segmenter::BlockFrom(int64_t begin, int64_t stream_end) {
  const int64_t last = begin + config_.block_tokens;
  const int64_t slack = config_.block_tokens / kSoftEndShare;
  ClosedBlock cut{{begin, last}, BlockEnd::kLength};
  for (auto at = noted_.begin(); at != noted_.end() && at->position <= std::min(last, stream_end);) {
    const auto [position, kind] = *at;
    const bool ahead = position > begin;
    if (kind <= BoundaryKind::kParagraph) {
      const bool near_the_limit = ahead && last - position <= slack;
      if (near_the_limit && EndAt(kind) >= cut.ended_by) cut = {{begin, position}, EndAt(kind)};
    } else if (ahead && position - begin >= config_.least_tokens) {
      if (kind == BoundaryKind::kTurn || position >= cooldown_until_)
        return ClosedBlock{{begin, position}, EndAt(kind)};
    }
    if (!ahead || kind != BoundaryKind::kSignal) {
      ++at;
      continue;
    }
    if (position >= cooldown_until_) cooldown_until_ = position + config_.cooldown_tokens;
    passed_over_.push_back(position);
    at = noted_.erase(at);
  }
  if (stream_end < last) return std::nullopt;
  return cut;
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

std::vector<ClosedBlock> Segmenter::CutAll(int64_t open_from, int64_t stream_end, BlockEnd why) {
  std::vector<ClosedBlock> blocks = Cut(open_from, stream_end);
  const int64_t rest = blocks.empty() ? open_from : blocks.back().span.end;
  if (rest < stream_end) blocks.push_back({{rest, stream_end}, why});
  if (!blocks.empty() && !blocks.back().EndsTopic()) blocks.back().ended_by = why;
  std::erase_if(noted_, [stream_end](const Boundary& boundary) { return boundary.position <= stream_end; });
  return blocks;
}

void Segmenter::Restart() { noted_.clear(); }

}  // namespace everlong::os
