#include "everlong/os/segmenter.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "at_least.h"
#include "everlong/base/check.h"

namespace everlong::os {
Status Validate(const SegmenterConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("block_tokens", config.block_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("least_tokens", config.least_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("topic_lookahead", config.topic_lookahead, 0));
  if (std::isnan(config.topic_threshold)) return InvalidArgumentError("topic_threshold is not a number");
  return AtLeast("cooldown_tokens", config.cooldown_tokens, 0);
}

void Segmenter::Note(const Boundary& boundary) {
  EVERLONG_CHECK(noted_.empty() || noted_.back().position <= boundary.position);
  noted_.push_back(boundary);
}

void Segmenter::NoteProbability(int64_t end, float probability) {
  const int64_t position = end - config_.topic_lookahead;
  EVERLONG_CHECK(topic_ends_.empty() || topic_ends_.back().position < position);
  if (probability >= config_.topic_threshold) topic_ends_.push_back({position, probability});
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

std::optional<Segmenter::TopicCut> Segmenter::TopicFrom(int64_t begin) const {
  const int64_t known_by_the_limit = begin + config_.block_tokens - config_.topic_lookahead;
  int64_t silent_until = std::max(begin + 1, cooldown_until_);
  int64_t last = 0;  // of the places that are compared
  const TopicEnd* best = nullptr;
  for (const TopicEnd& end : topic_ends_) {
    if (end.position <= begin) continue;
    if (end.position > known_by_the_limit || (best != nullptr && end.position > last)) break;
    if (best == nullptr && end.position < silent_until) continue;
    if (end.position - begin < config_.least_tokens) {
      silent_until = end.position + config_.cooldown_tokens;
      continue;
    }
    if (best == nullptr) last = end.position + std::max(config_.least_tokens, 1) - 1;
    if (best == nullptr || end.probability > best->probability) best = &end;
  }
  if (best == nullptr) return std::nullopt;
  return TopicCut{best->position, std::min(last, known_by_the_limit) + config_.topic_lookahead};
}

void Segmenter::PassOverTooSoon(int64_t begin, int64_t stream_end) {
  std::erase_if(noted_, [&](const Boundary& boundary) {
    const int64_t position = boundary.position;
    if (boundary.kind != BoundaryKind::kSignal || position <= begin || position > stream_end) return false;
    if (position - begin >= config_.least_tokens) return false;
    if (position >= cooldown_until_) cooldown_until_ = position + config_.cooldown_tokens;
    passed_over_.push_back(position);
    return true;
  });
}

std::optional<ClosedBlock> Segmenter::BlockFrom(int64_t begin, int64_t stream_end) {
  const int64_t last = begin + config_.block_tokens;
  const int64_t slack = config_.block_tokens / kSoftEndShare;
  PassOverTooSoon(begin, std::min(last, stream_end));
  const std::optional<TopicCut> topic = TopicFrom(begin);
  const bool decided = topic && topic->decided_at <= stream_end;
  const int64_t until = decided ? topic->decided_at : std::min(last, stream_end);
  ClosedBlock cut{{begin, last}, BlockEnd::kLength};
  for (auto at = noted_.begin(); at != noted_.end() && at->position <= until;) {
    const auto [position, kind] = *at;
    const bool ahead = position > begin;
    if (ahead && kind == BoundaryKind::kSignal && position < cooldown_until_) {
      passed_over_.push_back(position);
      at = noted_.erase(at);
      continue;
    }
    if (kind <= BoundaryKind::kParagraph) {
      const bool near_the_limit = ahead && last - position <= slack;
      if (near_the_limit && EndAt(kind) >= cut.ended_by) cut = {{begin, position}, EndAt(kind)};
    } else if (ahead && position - begin >= config_.least_tokens) {
      return ClosedBlock{{begin, position}, EndAt(kind)};
    }
    ++at;
  }
  if (decided) return ClosedBlock{{begin, topic->position}, BlockEnd::kTopic};
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
  ForgetUntil(begin);
  return blocks;
}

std::vector<ClosedBlock> Segmenter::CutAll(int64_t open_from, int64_t stream_end, BlockEnd why) {
  std::vector<ClosedBlock> blocks = Cut(open_from, stream_end);
  const int64_t rest = blocks.empty() ? open_from : blocks.back().span.end;
  if (rest < stream_end) blocks.push_back({{rest, stream_end}, why});
  if (!blocks.empty() && !blocks.back().EndsTopic()) blocks.back().ended_by = why;
  ForgetUntil(stream_end);
  return blocks;
}

void Segmenter::Restart() {
  noted_.clear();
  topic_ends_.clear();
}

void Segmenter::ForgetUntil(int64_t position) {
  std::erase_if(noted_, [position](const Boundary& boundary) { return boundary.position <= position; });
  std::erase_if(topic_ends_, [position](const TopicEnd& end) { return end.position <= position; });
}

}  // namespace everlong::os
