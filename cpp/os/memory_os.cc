#include "everlong/os/memory_os.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "at_least.h"
#include "everlong/base/check.h"

namespace everlong::os {

Status Validate(const MemoryOsConfig& config) {
  EVERLONG_RETURN_IF_ERROR(Validate(config.residency));
  EVERLONG_RETURN_IF_ERROR(Validate(config.segmenter));
  EVERLONG_RETURN_IF_ERROR(Validate(config.residency.kept, config.segmenter.block_tokens));
  EVERLONG_RETURN_IF_ERROR(Validate(config.recall));
  EVERLONG_RETURN_IF_ERROR(AtLeast("stream", config.stream, 0));
  if (config.recall.tombstone) {
    EVERLONG_RETURN_IF_ERROR(AtLeast("tombstones, which a recall policy heeds,", config.residency.tombstones, 1));
  }
  if (config.residency.rolling_tokens >= config.segmenter.block_tokens) return OkStatus();
  return InvalidArgumentError("rolling_tokens is " + std::to_string(config.residency.rolling_tokens) +
                              ", expected at least block_tokens, which is " +
                              std::to_string(config.segmenter.block_tokens));
}

Role RoleOf(Origin origin) {
  switch (origin) {
    case Origin::kRead:
      return Role::kRead;
    case Origin::kPrompt:
      return Role::kAsked;
    case Origin::kGenerated:
      return Role::kSaid;
  }
  EVERLONG_CHECK(false);
}

MemoryOs::MemoryOs(const MemoryOsConfig& config) : MemoryOs(config, MakeZones(config.residency)) {}

MemoryOs::MemoryOs(const MemoryOsConfig& config, ZoneList zones)
    : config_(config),
      segmenter_(config.segmenter),
      residency_(config.residency, std::move(zones)),
      policy_(config.recall) {
  EVERLONG_CHECK(Validate(config).ok());
}

int64_t MemoryOs::Room() const { return residency_.Room(); }
int64_t MemoryOs::NextPosition() const { return residency_.NextPosition(); }

std::vector<Action> MemoryOs::Observe(int64_t tokens, Origin origin, std::span<const Boundary> boundaries,
                                      std::span<const float> topic_probabilities,
                                      std::span<const float> tombstone_scores) {
  EVERLONG_CHECK(due_.empty());
  const int64_t begin = stream_end();
  state_ = State::kGenerating;  // stop waiting for a recall that the host did not do
  asked_span_ = {};
  const TokenSpan waking = Waking(tombstone_scores);  // before the zone changes
  residency_.Append(tokens);
  if (origin == Origin::kRead) read_until_ = stream_end();
  std::vector<Action> actions;
  while (!fed_blocks_.empty() && fed_blocks_.front().end <= stream_end()) {
    Trim(fed_blocks_.front(), actions);
    fed_blocks_.pop_front();
  }
  if (tokens > 0) BeginRole(RoleOf(origin), begin, actions);
  if (archiving_) {
    for (const Boundary& boundary : boundaries) {
      EVERLONG_CHECK(boundary.position >= begin && boundary.position <= stream_end());
      segmenter_.Note(boundary);
      if (boundary.kind != BoundaryKind::kSignal) continue;
      Record(EventKind::kSummarizeSignal, {boundary.position, boundary.position}, 0);
    }
    EVERLONG_CHECK(topic_probabilities.empty() || std::ssize(topic_probabilities) == tokens);
    int64_t end = begin;
    for (const float probability : topic_probabilities) segmenter_.NoteProbability(++end, probability);
    Archive(segmenter_.Cut(archived_until_, stream_end()), actions);
  }
  if (const int64_t overflow = residency_.Overflow(); overflow > 0) Evict(overflow, actions);
  if (origin != Origin::kGenerated) return actions;
  const std::optional<RecallTrigger> waited = policy_.Waiting();
  if (const std::optional<RecallTrigger> due = policy_.Count(tokens)) {
    AskRecall(*due, actions);
  } else if (!waking.empty() && policy_.Wake()) {
    AskRecall(RecallTrigger::kTombstone, actions, waking);
  }
  const std::optional<RecallTrigger> waits = policy_.Waiting();
  if (waits && waits != waited) Record(EventKind::kRecallWaits, {}, 0).trigger = waits;
  return actions;
}

std::vector<Action> MemoryOs::Raise(Signal signal) {
  EVERLONG_CHECK(due_.empty());
  std::vector<Action> actions;
  const TokenSpan here{stream_end(), stream_end()};
  Record(signal == Signal::kRetrieve ? EventKind::kRetrieveSignal : EventKind::kSummarizeSignal, here, 0);
  if (signal == Signal::kRetrieve) {
    if (const std::optional<RecallTrigger> due = policy_.Signal()) {
      AskRecall(*due, actions);
    } else if (policy_.Waiting() == RecallTrigger::kSignal) {
      Record(EventKind::kRecallWaits, {}, 0).trigger = RecallTrigger::kSignal;
    } else {
      RecordPassedOver(stream_end());
    }
  } else if (archiving_ && archived_until_ < stream_end()) {
    segmenter_.Note({stream_end(), BoundaryKind::kSignal});
    Archive(segmenter_.Cut(archived_until_, stream_end()), actions);
  } else {
    RecordPassedOver(stream_end());
  }
  return actions;
}

std::vector<Action> MemoryOs::EndOfText() {
  EVERLONG_CHECK(due_.empty());
  std::vector<Action> actions;
  if (!archiving_) return actions;
  Archive(segmenter_.CutAll(archived_until_, stream_end()), actions);
  residency_.BeginTopic(stream_end());
  return actions;
}

std::vector<Action> MemoryOs::BeginPrompt() {
  EVERLONG_CHECK(due_.empty());
  std::vector<Action> actions;
  if (!config_.recall.prompt) return actions;
  if (residency_.evicted()) {
    // Tokens that are not archived could not come back.
    const int64_t returns_until = residency_.RoomForOffers() == 0 ? read_until_
                                  : archiving_                    ? stream_end()
                                                                  : std::max(read_until_, archived_until_);
    NarrowRolling(std::max<int64_t>(config_.recall.prompt_rolling_tokens, stream_end() - returns_until), actions);
    const TokenSpan left{read_until_, residency_.rolling().begin};
    conversation_ = left.Intersect({left.end - residency_.RoomForOffers(), left.end});
  }
  AskRecall(RecallTrigger::kPrompt, actions);
  return actions;
}

std::vector<Placement> MemoryOs::Recall(std::span<const Offer> offers) {
  EVERLONG_CHECK(due_.empty());
  Placed placed = PlaceOffers(offers, residency_, config_.stream, config_.recall.conversation_tokens);
  woken_span_ = std::exchange(asked_span_, {});
  std::vector<TokenSpan> own;
  for (const RestoredRun& run : placed.restored) {
    if (run.stream == config_.stream && run.detail_slots == 0) own.push_back(run.span);
  }
  residency_.Fill(placed.slots, std::move(own));
  if (placed.found) policy_.Restored();
  state_ = State::kRetrieving;
  Record(EventKind::kRestore, {}, placed.slots).restored = std::move(placed.restored);
  if (placed.left_out > 0) Record(EventKind::kLeftOut, {}, placed.left_out);
  state_ = State::kGenerating;
  return std::move(placed.placements);
}

void MemoryOs::ClearRecalled() {
  const int64_t cleared = residency_.recalled();
  EVERLONG_CHECK(due_.empty());
  conversation_ = {};
  asked_span_ = woken_span_ = {};
  residency_.Fill(0, {});
  state_ = State::kGenerating;
  Record(EventKind::kClear, {}, cleared);
}

std::vector<Placement> MemoryOs::Resume(const ResumeState& from) {
  const int64_t stream_end = from.stream_end;
  const int64_t archived_until = from.archived_until.value_or(stream_end);
  EVERLONG_CHECK(due_.empty());
  EVERLONG_CHECK(stream_end >= 0 && archived_until >= stream_end);
  std::vector<Placement> placements = ResumeFrame(from);
  FeedAgain(from);
  policy_ = RecallPolicy(config_.recall);
  if (from.recall_counts) policy_.Adopt(*from.recall_counts);
  if (!from.archived_until) residency_.BeginTopic(stream_end);
  archived_until_ = archived_until;
  segmenter_.Restart();
  const bool possible = from.cooldown_until <= stream_end + config_.segmenter.cooldown_tokens;
  segmenter_.PassOverUntil(possible ? from.cooldown_until : 0);
  read_until_ = std::clamp<int64_t>(from.read_until.value_or(stream_end), 0, stream_end);
  conversation_ = {};
  asked_span_ = woken_span_ = {};
  state_ = State::kGenerating;
  Record(EventKind::kResume, rolling(), sinks() + rolling().size());
  Record(residency_.Report());
  return placements;
}

std::vector<Placement> MemoryOs::ResumeFrame(const ResumeState& from) {
  std::vector<PageRef> pages = from.pages;
  std::erase_if(pages, [this](const PageRef& page) { return page.stream != config_.stream; });
  int64_t first_tokens = 0;
  int64_t contiguous_from = from.stream_end;
  for (const PageRef& page : pages) {
    if (page.span.begin <= first_tokens) first_tokens = std::max(first_tokens, page.span.end);
  }
  for (const PageRef& page : pages | std::views::reverse) {
    if (page.span.end >= contiguous_from) contiguous_from = std::min(contiguous_from, page.span.begin);
  }
  const TokenSpan rolling = residency_.Resume(from.stream_end, first_tokens, contiguous_from, from.rolling_from);
  const TokenSpan sinks{0, residency_.sinks()};

  std::vector<Placement> placements;
  const auto place = [&placements](const PageRef& page, TokenSpan span, int64_t position) {
    if (span.empty()) return;
    const auto first_token = static_cast<int32_t>(span.begin - page.span.begin);
    const auto tokens = static_cast<int32_t>(span.size());
    if (!placements.empty()) {
      Placement& last = placements.back();
      // Sinks and rolling of one page are one run while nothing has left the frame.
      if (last.page == page && last.first_token + last.tokens == first_token &&
          last.position + last.tokens == position) {
        last.tokens += tokens;
        return;
      }
    }
    placements.push_back({page, first_token, tokens, position});
  };
  for (const PageRef& page : pages) {
    const TokenSpan in_sinks = page.span.Intersect(sinks);
    const TokenSpan in_rolling = page.span.Intersect(rolling);
    place(page, in_sinks, in_sinks.begin);
    place(page, in_rolling, residency_.rolling_position() + in_rolling.begin - rolling.begin);
  }
  residency_.Open(from.zones, [&pages](std::span<const TokenSpan> spans) {
    return std::ranges::all_of(spans, [&](const TokenSpan& span) {
      int64_t reached = span.begin;
      for (const PageRef& page : pages) {
        if (page.span.begin <= reached) reached = std::max(reached, page.span.end);
      }
      return reached >= span.end;
    });
  });
  return placements;
}

void MemoryOs::FeedAgain(const ResumeState& from) {
  fed_blocks_.clear();
  for (const PageRef& page : from.pages) {
    if (page.stream != config_.stream) continue;
    const bool same = !fed_blocks_.empty() && fed_blocks_.back().end == page.span.begin && page.page > 0;
    if (same) {
      fed_blocks_.back().end = page.span.end;
    } else {
      fed_blocks_.push_back(page.span);
    }
  }
  std::erase_if(fed_blocks_, [&](const TokenSpan& block) {
    return block.end <= from.stream_end || block.end > from.archived_until.value_or(from.stream_end);
  });
}

void MemoryOs::StopArchiving() { archiving_ = false; }

void MemoryOs::Archive(const std::vector<ClosedBlock>& blocks, std::vector<Action>& actions) {
  for (const int64_t position : segmenter_.TakePassedOver()) RecordPassedOver(position);
  if (blocks.empty()) return;
  const State before = std::exchange(state_, State::kArchiving);
  for (const ClosedBlock& block : blocks) {
    const TokenSpan span = block.span;
    EVERLONG_CHECK(span.begin >= archived_until_);
    const TokenSpan sinks{0, residency_.sinks()};
    actions.emplace_back(ArchiveAction{span, static_cast<int32_t>(span.Intersect(sinks).size()), role_});
    archived_until_ = span.end;
    Record(EventKind::kArchive, span, span.size()).ended_by = block.ended_by;
    Trim(span, actions);
    if (block.EndsTopic()) residency_.BeginTopic(span.end);
  }
  state_ = before;
}

void MemoryOs::BeginRole(Role role, int64_t begin, std::vector<Action>& actions) {
  if (role == role_) return;
  if (archiving_ && archived_until_ < begin) {
    // A question and its answer are one topic. Each question is another topic.
    const BlockEnd why = role_ == Role::kAsked && role == Role::kSaid ? BlockEnd::kAnswer : BlockEnd::kTurn;
    Archive(segmenter_.CutAll(archived_until_, begin, why), actions);
  }
  role_ = role;
}

void MemoryOs::NarrowRolling(int64_t tokens, std::vector<Action>& actions) {
  const int64_t surplus = residency_.rolling().size() - tokens;
  if (surplus <= 0) return;
  // Only archived tokens may leave, so the open block ends here.
  if (archiving_ && residency_.rolling().begin + surplus > archived_until_) {
    Archive(segmenter_.CutAll(archived_until_, stream_end(), BlockEnd::kQuestion), actions);
  }
  Evict(surplus, actions);
}

void MemoryOs::Evict(int64_t tokens, std::vector<Action>& actions) {
  const TokenSpan evicted{residency_.rolling().begin, residency_.rolling().begin + tokens};
  EVERLONG_CHECK(!archiving_ || evicted.end <= archived_until_);
  Eviction eviction = residency_.Evict(tokens);
  Record(EventKind::kEvict, evicted, tokens);
  Record(eviction.events);
  Settle();
  actions.emplace_back(EvictAction{tokens, eviction.delta, std::move(eviction.keeps), residency_.CopyPositions()});
}

void MemoryOs::AskRecall(RecallTrigger trigger, std::vector<Action>& actions, TokenSpan span) {
  state_ = State::kRetrieving;
  asked_span_ = span;
  actions.emplace_back(
      RecallAction{trigger, trigger == RecallTrigger::kRecent ? config_.recall.recent_blocks : 0, span});
  Record(EventKind::kRecall, span, 0).trigger = trigger;
}

TokenSpan MemoryOs::Waking(std::span<const float> scores) const {
  if (scores.empty()) return {};
  const std::vector<TokenSpan> spans = residency_.StandIns();
  EVERLONG_CHECK(scores.size() == spans.size());
  TokenSpan waking;
  float highest = config_.recall.tombstone_threshold;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (spans[i] == woken_span_ || !(waking.empty() ? scores[i] >= highest : scores[i] > highest)) continue;
    highest = scores[i];
    waking = spans[i];
  }
  return waking;
}

void MemoryOs::Trim(TokenSpan block, std::vector<Action>& actions) {
  const int64_t wanted = residency_.Wanted(block);
  if (wanted == 0) return;
  TrimAction action{block, 0, residency_.Choosable(block)};
  for (const TokenSpan& run : action.from) action.tokens += run.size();
  action.tokens = std::min(action.tokens, wanted);
  if (action.tokens == 0) return;
  due_.push_back(action);
  actions.emplace_back(std::move(action));
}

void MemoryOs::Choose(std::span<const int64_t> tokens) {
  EVERLONG_CHECK(!due_.empty());
  const TrimAction& due = due_.front();
  EVERLONG_CHECK(std::ssize(tokens) <= due.tokens);
  for (const int64_t token : tokens) {
    EVERLONG_CHECK(
        std::ranges::any_of(due.from, [&](const TokenSpan& run) { return token >= run.begin && token < run.end; }));
  }
  residency_.Choose(due.block, tokens);
  Record(EventKind::kTrim, due.block, std::ssize(tokens));
  due_.pop_front();
  Settle();
}

void MemoryOs::Settle() {
  if (due_.empty()) Record(residency_.Settle());
}

MemoryOs MemoryOs::Branch() const {
  EVERLONG_CHECK(due_.empty());
  MemoryOs branch = *this;
  branch.StopArchiving();
  branch.branched_at_ = branched_at_.value_or(stream_end());
  branch.recorded_ = 0;
  return branch;
}

void MemoryOs::TakeTrace(const MemoryOs& branch) {
  EVERLONG_CHECK(branch.branched_at_.has_value());
  const std::span<const Event> kept = branch.trace_;
  const std::span<const Event> decided = kept.last(std::min(branch.recorded_, kept.size()));
  for (Event& event : std::vector<Event>(decided.begin(), decided.end())) Append(std::move(event));
}

void MemoryOs::RecordPassedOver(int64_t position) { Record(EventKind::kSignalPassedOver, {position, position}, 0); }

Event& MemoryOs::Record(EventKind what, TokenSpan span, int64_t tokens) {
  return Append({.stream = stream(),
                 .stream_position = stream_end(),
                 .state = state_,
                 .what = what,
                 .span = span,
                 .tokens = tokens,
                 .branched_at = branched_at_});
}

void MemoryOs::Record(std::span<const ZoneEvent> events) {
  for (const ZoneEvent& event : events) Record(event.what, event.span, event.tokens);
}

Event& MemoryOs::Append(Event event) {
  if (trace_.size() == kTraceCapacity) {
    trace_.erase(trace_.begin(), trace_.begin() + static_cast<ptrdiff_t>(kTraceCapacity / 10));
  }
  trace_.push_back(std::move(event));
  ++recorded_;
  return trace_.back();
}

bool MemoryOs::archiving() const { return archiving_; }
State MemoryOs::state() const { return state_; }
int64_t MemoryOs::stream() const { return config_.stream; }
int64_t MemoryOs::stream_end() const { return residency_.stream_end(); }
int64_t MemoryOs::archived_until() const { return archived_until_; }
int64_t MemoryOs::read_until() const { return read_until_; }
TokenSpan MemoryOs::conversation() const { return conversation_; }
TokenSpan MemoryOs::rolling() const { return residency_.rolling(); }
int64_t MemoryOs::sinks() const { return residency_.sinks(); }
int64_t MemoryOs::recalled_tokens() const { return residency_.recalled(); }
const TrimAction* MemoryOs::choice_due() const { return due_.empty() ? nullptr : &due_.front(); }
int64_t MemoryOs::open_from() const {
  return fed_blocks_.empty() ? std::min(archived_until_, stream_end()) : fed_blocks_.front().begin;
}
const RecallCounts& MemoryOs::recall_counts() const { return policy_.counts(); }
int64_t MemoryOs::cooldown_until() const { return segmenter_.cooldown_until(); }
bool MemoryOs::evicted() const { return residency_.evicted(); }
const std::vector<Event>& MemoryOs::trace() const { return trace_; }
std::optional<int64_t> MemoryOs::branched_at() const { return branched_at_; }

}  // namespace everlong::os
