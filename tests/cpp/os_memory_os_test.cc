#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/os/memory_os.h"
#include "os_zones.h"

namespace everlong::os {
namespace {

MemoryOsConfig SmallConfig() {
  MemoryOsConfig config;
  config.residency = {
      .frame_tokens = 100, .sink_tokens = 4, .recalled_tokens = 20, .rolling_tokens = 40, .evict_tokens = 8};
  config.segmenter.block_tokens = 16;
  config.recall.prompt = true;
  config.recall.recent = false;
  config.recall.prompt_rolling_tokens = 1000;  // a prompt moves nothing, but where a test says so
  return config;
}

// The first `anchor_tokens` of the newest `anchors` topics stay, and two tombstones.
MemoryOsConfig WithAnchorZone(int32_t anchor_tokens, int32_t anchors) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter.least_tokens = 4;
  config.residency.frame_tokens = 120;
  config.residency.anchor_tokens = anchor_tokens;
  config.residency.anchors = anchors;
  config.residency.tombstones = 2;
  return config;
}

// Pages of 8 tokens over blocks of 16, as a memory would cut the stream [0, end), whose first `sinks` are its sinks.
std::vector<PageRef> PagesOf(int64_t stream, int64_t end, int64_t first_block = 1, int64_t sinks = 0) {
  std::vector<PageRef> pages;
  for (int64_t begin = 0; begin < end; begin += 8) {
    const TokenSpan span{begin, std::min(begin + 8, end)};
    const auto its_sinks = static_cast<int32_t>(span.Intersect({0, sinks}).size());
    pages.push_back({first_block + begin / 16, static_cast<int32_t>(begin / 8 % 2), stream, span, its_sinks});
  }
  return pages;
}

template <class T>
std::vector<T> Only(const std::vector<Action>& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

TEST(MemoryOsTest, ValidatesParts) {
  EXPECT_TRUE(Validate(MemoryOsConfig{}).ok());
  MemoryOsConfig config = SmallConfig();
  EXPECT_TRUE(Validate(config).ok());
  config.segmenter.block_tokens = 41;
  EXPECT_EQ(Validate(config).code(), StatusCode::kInvalidArgument);
  config.segmenter.block_tokens = 40;
  EXPECT_TRUE(Validate(config).ok());
  config.stream = -1;
  EXPECT_EQ(Validate(config).code(), StatusCode::kInvalidArgument);
  EXPECT_DEATH(MemoryOs{config}, "CHECK failed");
}

TEST(MemoryOsTest, ArchivesCompleteBlocksSinksIncludedThenEvicts) {
  MemoryOs os(SmallConfig());
  const std::vector<Action> first = os.Observe(40, Origin::kRead);
  const auto archives = Only<ArchiveAction>(first);
  ASSERT_EQ(archives.size(), 2U);
  EXPECT_EQ(archives[0].span, (TokenSpan{0, 16}));
  EXPECT_EQ(archives[0].sink_tokens, 4);
  EXPECT_EQ(archives[1].span, (TokenSpan{16, 32}));
  EXPECT_EQ(archives[1].sink_tokens, 0);
  EXPECT_EQ(first.size(), 2U) << "nothing leaves yet";
  EXPECT_EQ(os.archived_until(), 32);

  const std::vector<Action> second = os.Observe(12, Origin::kRead);
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(std::get<ArchiveAction>(second[0]).span, (TokenSpan{32, 48}));
  EXPECT_EQ(std::get<EvictAction>(second[1]).tokens, 8);
  EXPECT_EQ(std::get<EvictAction>(second[1]).delta, 12);
  EXPECT_EQ(os.rolling(), (TokenSpan{12, 52}));
}

TEST(MemoryOsTest, EndOfTextArchivesWhatIsLeft) {
  MemoryOs os(SmallConfig());
  os.Observe(3, Origin::kRead);
  auto archives = Only<ArchiveAction>(os.EndOfText());
  ASSERT_EQ(archives.size(), 1U);
  EXPECT_EQ(archives[0].span, (TokenSpan{0, 3}));
  EXPECT_EQ(archives[0].sink_tokens, 3);
  EXPECT_TRUE(os.EndOfText().empty());
  archives = Only<ArchiveAction>(os.Observe(16, Origin::kPrompt));
  ASSERT_EQ(archives.size(), 1U);
  EXPECT_EQ(archives[0].span, (TokenSpan{3, 19}));
  EXPECT_EQ(archives[0].sink_tokens, 1) << "token 3 is the last sink of the stream";
}

TEST(MemoryOsTest, ABlockHasOneRole) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter.least_tokens = 8;
  config.recall.prompt_rolling_tokens = 0;
  struct Archived {
    TokenSpan span;
    Role role = Role::kRead;
    BlockEnd why = BlockEnd::kLength;
    bool operator==(const Archived&) const = default;
  };
  // Read, asked, said, asked again at once, said, and read on: however short, and however it is fed.
  const auto archived_of = [&](int64_t at_once) {
    MemoryOs os(config);
    std::vector<Archived> archived;
    const auto take = [&](const std::vector<Action>& actions) {
      for (const auto& action : Only<ArchiveAction>(actions)) archived.push_back({action.span, action.role});
    };
    const auto feed = [&](int64_t tokens, Origin origin) {
      std::vector<Boundary> turn;
      if (origin == Origin::kPrompt) turn.push_back({os.stream_end(), BoundaryKind::kTurn});
      for (; tokens > 0; tokens -= std::min(tokens, at_once)) {
        take(os.Observe(std::min(tokens, at_once), origin, std::exchange(turn, {})));
      }
    };
    feed(20, Origin::kRead);  // an open rest of 4
    feed(19, Origin::kPrompt);
    feed(5, Origin::kGenerated);
    feed(12, Origin::kPrompt);
    feed(17, Origin::kGenerated);
    feed(2, Origin::kRead);
    take(os.EndOfText());
    feed(3, Origin::kPrompt);
    take(os.Raise(Signal::kSummarize));  // too short
    take(os.EndOfText());
    feed(1, Origin::kRead);
    take(os.EndOfText());
    size_t at = 0;
    for (const Event& event : os.trace()) {
      if (event.what == EventKind::kArchive) archived[at++].why = *event.ended_by;
    }
    EXPECT_EQ(at, archived.size());
    return archived;
  };
  using enum Role;
  const std::vector<Archived> expected{
      {{0, 16}, kRead, BlockEnd::kLength},   {{16, 20}, kRead, BlockEnd::kTurn}, {{20, 36}, kAsked, BlockEnd::kLength},
      {{36, 39}, kAsked, BlockEnd::kAnswer}, {{39, 44}, kSaid, BlockEnd::kTurn}, {{44, 56}, kAsked, BlockEnd::kAnswer},
      {{56, 72}, kSaid, BlockEnd::kLength},  {{72, 73}, kSaid, BlockEnd::kTurn}, {{73, 75}, kRead, BlockEnd::kText},
      {{75, 78}, kAsked, BlockEnd::kText},   {{78, 79}, kRead, BlockEnd::kText}};
  for (const int64_t at_once : {1, 3, 20}) EXPECT_TRUE(archived_of(at_once) == expected) << at_once;
}

TEST(MemoryOsTest, AnAnswerIsOfItsQuestionsTopic) {
  MemoryOs os(WithAnchorZone(3, 2));
  os.Observe(20, Origin::kRead);
  os.Observe(6, Origin::kPrompt);
  os.Observe(1, Origin::kGenerated);
  EXPECT_EQ(os.archived_until(), 26);
  EXPECT_EQ(CopiesOf(os.frame()).topics, (std::vector<int64_t>{0, 20}));
}

TEST(MemoryOsTest, PromptAsksOnceAndRecallReturnsToGenerating) {
  MemoryOs os(SmallConfig());
  EXPECT_EQ(os.state(), State::kGenerating);
  const auto actions = os.BeginPrompt();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<RecallAction>(actions[0]).trigger, RecallTrigger::kPrompt);
  EXPECT_EQ(os.state(), State::kRetrieving);
  EXPECT_TRUE(Recall(os, {}).empty());
  EXPECT_EQ(os.state(), State::kGenerating);
  os.BeginPrompt();
  os.ClearRecalled();
  EXPECT_EQ(os.state(), State::kGenerating);

  MemoryOsConfig config = SmallConfig();
  config.recall.prompt = false;
  MemoryOs silent(config);
  EXPECT_TRUE(silent.BeginPrompt().empty());
  EXPECT_EQ(silent.state(), State::kGenerating);
}

TEST(MemoryOsTest, RecentCountsOnlyGeneratedTokensAndComesLast) {
  MemoryOsConfig config = SmallConfig();
  config.recall = {.prompt = false, .recent = true, .recent_every = 10, .recent_blocks = 2};
  MemoryOs os(config);
  EXPECT_TRUE(Only<RecallAction>(os.Observe(45, Origin::kRead)).empty());
  EXPECT_TRUE(Only<RecallAction>(os.Observe(1, Origin::kPrompt)).empty());
  EXPECT_TRUE(Only<RecallAction>(os.Observe(9, Origin::kGenerated)).empty());
  os.Observe(8, Origin::kRead);
  const auto actions = os.Observe(1, Origin::kGenerated);
  ASSERT_FALSE(actions.empty());
  const auto* recall = std::get_if<RecallAction>(&actions.back());
  ASSERT_NE(recall, nullptr);
  EXPECT_EQ(recall->trigger, RecallTrigger::kRecent);
  EXPECT_EQ(recall->blocks, 2);
  EXPECT_EQ(os.state(), State::kRetrieving);
  os.Observe(1, Origin::kGenerated);
  EXPECT_EQ(os.state(), State::kGenerating) << "the host passed it over";
}

TEST(MemoryOsTest, SignalsEndABlockAndAskForARecall) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter.least_tokens = 3;
  config.recall = {.prompt = false, .signal = true, .protect_tokens = 4};
  MemoryOs os(config);
  os.Observe(2, Origin::kGenerated);
  EXPECT_TRUE(os.Raise(Signal::kSummarize).empty()) << "shorter than L_min";
  os.Observe(67, Origin::kRead);
  const int64_t open_from = os.archived_until();
  ASSERT_GE(os.stream_end() - open_from, 3);
  const auto archives = Only<ArchiveAction>(os.Raise(Signal::kSummarize));
  ASSERT_EQ(archives.size(), 1U);
  EXPECT_EQ(archives[0].span, (TokenSpan{open_from, os.stream_end()}));

  const auto recalls = Only<RecallAction>(os.Raise(Signal::kRetrieve));
  ASSERT_EQ(recalls.size(), 1U);
  EXPECT_EQ(recalls[0].trigger, RecallTrigger::kSignal);
  EXPECT_EQ(os.state(), State::kRetrieving);
  Recall(os, PagesOf(0, 8));
  EXPECT_TRUE(os.Raise(Signal::kRetrieve).empty()) << "protected";
  EXPECT_TRUE(Only<RecallAction>(os.Observe(3, Origin::kGenerated)).empty());
  EXPECT_EQ(Only<RecallAction>(os.Observe(1, Origin::kGenerated)).size(), 1U);
}

TEST(MemoryOsTest, BlocksEndWhereTheTextDoes) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter = {.block_tokens = 16, .least_tokens = 4};
  MemoryOs os(config);
  const std::vector<Boundary> boundaries{{15, BoundaryKind::kSentence}, {21, BoundaryKind::kTurn}};
  const auto archives = Only<ArchiveAction>(os.Observe(25, Origin::kRead, boundaries));
  ASSERT_EQ(archives.size(), 2U);
  EXPECT_EQ(archives[0].span, (TokenSpan{0, 15}));
  EXPECT_EQ(archives[1].span, (TokenSpan{15, 21}));
}

TEST(MemoryOsTest, RecallIsRightAlignedAndLeavesOutWhatIsResident) {
  MemoryOs os(SmallConfig());
  os.Observe(70, Origin::kRead);  // rolling [30, 70) after the eviction
  ASSERT_EQ(os.rolling(), (TokenSpan{30, 70}));
  const std::vector<PageRef> pages = PagesOf(0, 70);
  // Page 0 holds the sinks 0-3, page 3 [24, 32) is resident from 30 on, page 5 altogether; page 2 comes twice.
  const std::vector<PageRef> wanted{pages[2], pages[0], pages[5], pages[3], pages[2]};
  const std::vector<Placement> placements = Recall(os, wanted);
  ASSERT_EQ(placements.size(), 3U);
  EXPECT_EQ(placements[0].page, pages[0]);
  EXPECT_EQ(placements[0].first_token, 4);
  EXPECT_EQ(placements[0].tokens, 4);
  EXPECT_EQ(placements[0].position, 24 - 18);
  EXPECT_EQ(placements[1].page, pages[3]);
  EXPECT_EQ(placements[1].first_token, 0);
  EXPECT_EQ(placements[1].tokens, 6);
  EXPECT_EQ(placements[1].position, 24 - 14);
  EXPECT_EQ(placements[2].page, pages[2]);
  EXPECT_EQ(placements[2].tokens, 8);
  EXPECT_EQ(placements[2].position, 24 - 8);
  EXPECT_EQ(os.recalled_tokens(), 18);
  os.ClearRecalled();
  EXPECT_EQ(os.recalled_tokens(), 0);
}

// What a recall brought, in frame order: a run a placement, by the stream's tokens.
std::vector<TokenSpan> RunsOf(const std::vector<Placement>& placements) {
  std::vector<TokenSpan> runs;
  for (const Placement& placement : placements) {
    const int64_t first = placement.page.span.begin + placement.first_token;
    runs.push_back({first, first + placement.tokens});
  }
  return runs;
}

TEST(MemoryOsTest, RecallLeavesOutWhatStandsInTheAnchorZone) {
  const MemoryOsConfig config = WithAnchorZone(3, 2);
  MemoryOs os(config);
  const std::vector<Boundary> turns{{10, BoundaryKind::kTurn}, {22, BoundaryKind::kTurn}};
  os.Observe(30, Origin::kRead, turns);
  os.Observe(60, Origin::kRead);
  ASSERT_EQ(CopiesOf(os.frame()).anchors, (std::vector<TokenSpan>{{10, 13}, {22, 25}}));
  ASSERT_EQ(os.rolling().begin, 50);
  const int64_t behind = os.NextPosition() - os.rolling().size();
  const std::vector<PageRef> pages = PagesOf(0, 90, 1, 4);

  // [8, 16) comes back around the anchor in its middle; of [16, 24) and [24, 32) the anchor over their border stays.
  std::vector<Placement> placements = Recall(os, std::span(pages).subspan(1, 3));
  EXPECT_EQ(RunsOf(placements), (std::vector<TokenSpan>{{8, 10}, {13, 16}, {16, 22}, {25, 32}}));
  ASSERT_EQ(placements.size(), 4U);
  EXPECT_EQ(placements[0].page, pages[1]);
  EXPECT_EQ(placements[0].first_token, 0);
  EXPECT_EQ(placements[1].page, pages[1]);
  EXPECT_EQ(placements[1].first_token, 5);
  EXPECT_EQ(placements[3].first_token, 1);
  EXPECT_EQ(os.recalled_tokens(), 18);
  int64_t next = behind - 18;
  for (const Placement& placement : placements) {
    EXPECT_EQ(placement.position, next) << "contiguous";
    next += placement.tokens;
  }
  EXPECT_EQ(next, behind) << "right-aligned";
  const Event& restored = os.trace().back();
  ASSERT_EQ(restored.what, EventKind::kRestore) << "what is resident was not left out for want of room";
  EXPECT_EQ(restored.tokens, 18);
  EXPECT_EQ(restored.restored,
            (std::vector<RestoredRun>{{1, 0, {8, 10}}, {1, 0, {13, 16}}, {2, 0, {16, 22}}, {2, 0, {25, 32}}}));

  // More than the zone has room for: what is resident does not count as left out.
  placements = Recall(os, std::vector<PageRef>{pages[1], pages[3], pages[4], pages[5]});
  EXPECT_EQ(RunsOf(placements), (std::vector<TokenSpan>{{28, 32}, {32, 40}, {40, 48}}));
  ASSERT_EQ(os.trace().back().what, EventKind::kLeftOut);
  EXPECT_EQ(os.trace().back().tokens, 2 + 3 + 3);

  // A page named twice comes once, whatever its runs; a branch has the same anchors.
  MemoryOs branch = os.Branch();
  EXPECT_EQ(RunsOf(Recall(branch, std::vector<PageRef>{pages[1], pages[1]})),
            (std::vector<TokenSpan>{{8, 10}, {13, 16}}));
  EXPECT_EQ(branch.recalled_tokens(), 5);
}

// Blocks of 16, as details of so many slots each.
std::vector<Offer> DetailsOf(std::initializer_list<int64_t> blocks, int32_t slots, int64_t stream = 0) {
  std::vector<Offer> details;
  for (const int64_t block : blocks) {
    details.push_back(
        {.kind = OfferKind::kDetails, .page = {block, 0, stream, {(block - 1) * 16, block * 16}}, .slots = slots});
  }
  return details;
}

TEST(MemoryOsTest, DetailsStandBeforePagesAndHaveHalfOfTheZoneBesideThem) {
  MemoryOsConfig config = SmallConfig();
  config.residency.recalled_tokens = 24;
  MemoryOs os(config);
  os.Observe(30, Origin::kRead);
  EXPECT_TRUE(Recall(os, {}, {}, DetailsOf({1}, 3)).empty()) << "nothing has left the frame";
  for (int i = 0; i < 2; ++i) os.Observe(30, Origin::kRead);
  const int64_t behind = os.NextPosition() - os.rolling().size();
  const std::vector<PageRef> pages = PagesOf(0, 90, 1, 4);

  // Alone they have all of the zone; what does not fit is the first, and comes whole or not at all.
  std::vector<Placement> placements = Recall(os, {}, {}, DetailsOf({1, 2, 3}, 10));
  ASSERT_EQ(placements.size(), 2U);
  EXPECT_TRUE(placements[0].details && placements[1].details);
  EXPECT_EQ(placements[0].page, (PageRef{2, 0, 0, {16, 32}}));
  EXPECT_EQ(placements[1].page.block, 3);
  EXPECT_EQ(placements[0].tokens, 10);
  EXPECT_EQ(placements[1].position, behind - 10);
  EXPECT_EQ(os.trace().back().what, EventKind::kLeftOut);
  EXPECT_EQ(os.trace().back().tokens, 10);
  EXPECT_EQ(os.recalled_tokens(), 20);

  // Beside two pages, of which one comes whole and four tokens of the other: half of the zone is theirs.
  placements = Recall(os, std::span(pages).subspan(2, 2), {}, DetailsOf({1, 3, 3, 2}, 4));
  EXPECT_EQ(RunsOf(placements), (std::vector<TokenSpan>{{0, 4}, {32, 36}, {16, 20}, {20, 24}, {24, 32}}))
      << "a block's slots stand for all of it, from its first token on";
  int64_t next = behind - 24;
  for (const Placement& placement : placements) {
    EXPECT_EQ(placement.position, next);
    next += placement.tokens;
  }
  EXPECT_EQ(next, behind);
  const auto restored = std::ranges::find(os.trace() | std::views::reverse, EventKind::kRestore, &Event::what);
  EXPECT_EQ(restored->restored,
            (std::vector<RestoredRun>{{1, 0, {0, 16}, 4}, {3, 0, {32, 48}, 4}, {2, 0, {16, 32}, 4}, {2, 0, {20, 32}}}));

  // What pages leave of the zone is theirs, too. Of this stream what is all resident is no memory; of another it is.
  placements = Recall(os, std::span(pages).subspan(1, 1), {}, DetailsOf({1, 2, 3, 4}, 4));
  EXPECT_EQ(placements.size(), 5U);
  EXPECT_EQ(os.recalled_tokens(), 24);
  ASSERT_LE(os.rolling().begin, 64);
  EXPECT_TRUE(Recall(os, {}, {}, DetailsOf({5}, 4)).empty());
  EXPECT_EQ(Recall(os, {}, {}, DetailsOf({5}, 4, 3)).size(), 1U);
  EXPECT_DEATH(Recall(os, {}, {}, DetailsOf({1}, 0)), "CHECK failed");
}

TEST(MemoryOsTest, TheTombstoneThatIsAttendedToMostWakes) {
  MemoryOsConfig config = WithAnchorZone(0, 1);
  config.residency.tombstones = 3;
  config.recall.tombstone = true;
  config.recall.tombstone_threshold = 0.5F;
  config.recall.protect_tokens = 2;
  config.residency.tombstones = 0;
  EXPECT_EQ(Validate(config).code(), StatusCode::kInvalidArgument);
  config.residency.tombstones = 3;
  ASSERT_TRUE(Validate(config).ok());
  MemoryOs os(config);
  for (int i = 0; i < 3; ++i) os.Observe(26, Origin::kRead);
  const std::vector<Tombstone> stones = CopiesOf(os.frame()).tombstones;
  ASSERT_GE(stones.size(), 2U);
  const auto scores = [&](std::initializer_list<float> first) {
    std::vector<float> all(first);
    all.resize(CopiesOf(os.frame()).tombstones.size(), 0.0F);
    return all;
  };
  const auto woken = [&](Origin origin, std::initializer_list<float> first) {
    return Only<RecallAction>(os.Observe(1, origin, {}, {}, scores(first)));
  };
  EXPECT_TRUE(woken(Origin::kGenerated, {0.4F, 0.3F}).empty());
  EXPECT_TRUE(woken(Origin::kRead, {0.9F, 0.3F}).empty()) << "what is read needs nothing";
  const std::vector<RecallAction> asked = woken(Origin::kGenerated, {0.6F, 0.9F});
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].trigger, RecallTrigger::kTombstone);
  EXPECT_EQ(asked[0].span, stones[1].span);
  EXPECT_EQ(os.trace().back().what, EventKind::kRecall);
  EXPECT_EQ(os.trace().back().trigger, RecallTrigger::kTombstone);
  EXPECT_EQ(os.trace().back().span, stones[1].span);

  // What came back for it is protected; then it is there already, and another one may wake.
  ASSERT_FALSE(Recall(os, std::vector<PageRef>{PagesOf(0, 78, 1, 4)[2]}).empty());
  EXPECT_TRUE(woken(Origin::kGenerated, {0.9F, 0.3F}).empty());
  EXPECT_EQ(woken(Origin::kGenerated, {0.3F, 0.9F}).size(), 0U);
  const std::vector<RecallAction> other = woken(Origin::kGenerated, {0.9F, 0.3F});
  ASSERT_EQ(other.size(), 1U);
  EXPECT_EQ(other[0].span, stones[0].span);
  os.ClearRecalled();
  EXPECT_EQ(woken(Origin::kGenerated, {0.3F, 0.9F}).size(), 1U) << "nothing is there any more";
  EXPECT_TRUE(Only<RecallAction>(os.Observe(1, Origin::kGenerated)).empty()) << "no scores were taken";
  EXPECT_DEATH(os.Observe(1, Origin::kGenerated, {}, {}, std::vector<float>(7, 0.0F)), "CHECK failed");
}

TEST(MemoryOsTest, APageThatIsAllAnchorsDoesNotComeBack) {
  MemoryOsConfig config = WithAnchorZone(16, 1);
  MemoryOs os(config);
  os.Observe(24, Origin::kRead, std::vector<Boundary>{{16, BoundaryKind::kTurn}});
  os.Observe(50, Origin::kRead);
  ASSERT_EQ(CopiesOf(os.frame()).anchors, (std::vector<TokenSpan>{{16, 32}}));
  const std::vector<PageRef> pages = PagesOf(0, 74, 1, 4);
  EXPECT_TRUE(Recall(os, std::span(pages).subspan(2, 2)).empty());
  EXPECT_EQ(os.recalled_tokens(), 0);
  EXPECT_EQ(RunsOf(Recall(os, std::span(pages).first(4))), (std::vector<TokenSpan>{{4, 8}, {8, 16}}));
  // Of another stream the same tokens are no anchors here.
  EXPECT_EQ(RunsOf(Recall(os, std::vector<PageRef>{{9, 0, 5, {16, 24}}})), (std::vector<TokenSpan>{{16, 24}}));
}

TEST(MemoryOsTest, RecallLeavesOutTheSinksOfEveryStream) {
  MemoryOsConfig config = SmallConfig();
  config.stream = 7;
  MemoryOs os(config);
  os.Observe(60, Origin::kRead);
  // Ten sinks over two pages of another stream: of the first nothing comes back.
  const std::vector<PageRef> other = PagesOf(3, 16, 1, 10);
  const std::vector<Placement> placements = Recall(os, other);
  ASSERT_EQ(placements.size(), 1U);
  EXPECT_EQ(placements[0].page, other[1]);
  EXPECT_EQ(placements[0].first_token, 2);
  EXPECT_EQ(placements[0].tokens, 6);
  EXPECT_EQ(placements[0].position, 24 - 6);
  EXPECT_EQ(os.trace().back().what, EventKind::kRestore);
  EXPECT_EQ(os.trace().back().tokens, 6);

  // Sinks of the own stream that an earlier frame had more of, or that this one lost, are none the less sinks.
  EXPECT_EQ(RunsOf(Recall(os, PagesOf(7, 8, 1, 6))), (std::vector<TokenSpan>{{6, 8}}));
  MemoryOs without(config);
  std::vector<PageRef> pages = PagesOf(7, 96, 1, 12);
  pages.erase(pages.begin());  // forgotten, and with it what the others follow on
  without.Resume({.stream_end = 96, .pages = pages});
  ASSERT_EQ(without.sinks(), 0);
  EXPECT_EQ(RunsOf(Recall(without, std::span(pages).first(2))), (std::vector<TokenSpan>{{12, 16}, {16, 24}}));
}

TEST(MemoryOsTest, PromptNarrowsRollingOnceSomethingHasLeft) {
  MemoryOsConfig config = SmallConfig();
  config.recall.prompt_rolling_tokens = 10;
  MemoryOs whole(config);
  whole.Observe(30, Origin::kRead);
  EXPECT_EQ(whole.BeginPrompt().size(), 1U) << "a frame that holds everything is left as it is";

  MemoryOs os(config);
  for (int i = 0; i < 5; ++i) os.Observe(20, Origin::kRead);
  const TokenSpan before = os.rolling();
  MemoryOs silent = os;
  const auto actions = os.BeginPrompt();
  EXPECT_TRUE(Only<ArchiveAction>(actions).empty()) << "tokens 90 .. 100 stay, the open block of 96 .. 100 too";
  const auto evictions = Only<EvictAction>(actions);
  ASSERT_EQ(evictions.size(), 1U);
  EXPECT_EQ(evictions[0].tokens, before.size() - 10);
  EXPECT_EQ(evictions[0].delta, -evictions[0].tokens);
  EXPECT_EQ(os.rolling(), (TokenSpan{90, 100}));
  EXPECT_EQ(os.NextPosition(), 24 + 10);
  EXPECT_TRUE(std::holds_alternative<RecallAction>(actions.back()));

  Recall(os, {});
  os.Observe(6, Origin::kPrompt);
  os.Observe(7, Origin::kGenerated);
  os.BeginPrompt();
  EXPECT_EQ(os.rolling(), (TokenSpan{103, 113}));

  config.recall.prompt_rolling_tokens = 0;
  MemoryOs nothing_stays(config);
  for (int i = 0; i < 5; ++i) nothing_stays.Observe(20, Origin::kRead);
  const auto archives = Only<ArchiveAction>(nothing_stays.BeginPrompt());
  ASSERT_EQ(archives.size(), 1U) << "only what is archived may leave";
  EXPECT_EQ(archives[0].span, (TokenSpan{96, 100}));
  EXPECT_TRUE(nothing_stays.rolling().empty());

  silent.StopArchiving();
  EXPECT_TRUE(Only<ArchiveAction>(silent.BeginPrompt()).empty());
  EXPECT_EQ(silent.rolling(), (TokenSpan{90, 100}));
}

// 100 tokens of text, then `turns` questions and answers of 3 tokens each, and the beginning of another question.
MemoryOs AskedAfterTurns(const MemoryOsConfig& config, int turns) {
  MemoryOs os(config);
  for (int i = 0; i < 5; ++i) os.Observe(20, Origin::kRead);
  for (int turn = 0; turn < turns; ++turn) {
    os.BeginPrompt();
    Recall(os, {});
    os.Observe(3, Origin::kPrompt);
    os.Observe(3, Origin::kGenerated);
    os.EndOfText();
  }
  os.BeginPrompt();
  return os;
}

// A page for each question and each answer of that many turns.
std::vector<PageRef> TurnPages(const TokenSpan& span) {
  std::vector<PageRef> pages;
  for (int64_t begin = 100; begin < span.end; begin += 3) {
    if (begin >= span.begin) pages.push_back({100 + begin, 0, 0, {begin, begin + 3}, 0});
  }
  return pages;
}

TEST(MemoryOsTest, AConversationStandsBeforeWhatAQuestionRecalls) {
  MemoryOsConfig config = SmallConfig();  // a recalled zone of 20
  config.recall.prompt_rolling_tokens = 0;
  config.recall.conversation_tokens = 7;
  MemoryOs os = AskedAfterTurns(config, 3);
  EXPECT_TRUE(os.rolling().empty()) << "no turn stands between what is recalled and the question";
  EXPECT_EQ(os.conversation(), (TokenSpan{100, 118}));
  const std::vector<PageRef> turns = TurnPages(os.conversation());
  const std::vector<PageRef> read = PagesOf(0, 96);

  using Spans = std::vector<TokenSpan>;
  EXPECT_EQ(RunsOf(Recall(os, {}, turns)),
            (Spans{{100, 103}, {103, 106}, {106, 109}, {109, 112}, {112, 115}, {115, 118}}));
  const std::vector<PageRef> one{read[3]};
  EXPECT_EQ(RunsOf(Recall(os, one, turns)), (Spans{{112, 115}, {115, 118}, {24, 32}})) << "whole pages";
  const std::vector<PageRef> many{read[3], read[5], read[7]};
  const std::vector<Placement> placements = Recall(os, many, turns);
  EXPECT_EQ(RunsOf(placements), (Spans{{112, 115}, {115, 118}, {42, 48}, {56, 64}}));
  EXPECT_EQ(placements.back().position + placements.back().tokens, 24) << "right before the question";
  EXPECT_EQ(os.trace().back().what, EventKind::kLeftOut);
  EXPECT_EQ(os.trace().back().tokens, 24 - 14) << "of what was found alone";

  // What a search names of it: the newest stays where it was said, what was found of older turns is nearest.
  const std::vector<PageRef> named{turns[5], turns[0]};
  EXPECT_EQ(RunsOf(Recall(os, named, turns)), (Spans{{112, 115}, {115, 118}, {100, 103}}));

  os.ClearRecalled();
  EXPECT_TRUE(os.conversation().empty());
}

TEST(MemoryOsTest, AConversationStaysWhereItCouldNotComeBack) {
  MemoryOsConfig config = SmallConfig();
  config.recall.prompt_rolling_tokens = 0;
  MemoryOs os = AskedAfterTurns(config, 1);
  os.StopArchiving();
  os.Observe(3, Origin::kPrompt);
  os.Observe(3, Origin::kGenerated);
  os.BeginPrompt();
  EXPECT_EQ(os.rolling(), (TokenSpan{106, 112})) << "what is archived left, the rest is nowhere else";
  EXPECT_EQ(os.conversation(), (TokenSpan{100, 106}));

  config.residency.recalled_tokens = 0;
  EXPECT_EQ(AskedAfterTurns(config, 2).rolling(), (TokenSpan{100, 112})) << "there is no place to come back to";
}

TEST(MemoryOsTest, AConversationEndsWhereTextIsRead) {
  MemoryOsConfig config = SmallConfig();
  config.recall.prompt_rolling_tokens = 0;
  MemoryOs os = AskedAfterTurns(config, 2);
  os.Observe(20, Origin::kRead);
  os.BeginPrompt();
  EXPECT_TRUE(os.conversation().empty());
}

TEST(MemoryOsTest, OfAConversationHalfOfTheZoneComesAtMostWhereMoreIsFound) {
  MemoryOsConfig config = SmallConfig();
  config.recall.prompt_rolling_tokens = 0;
  config.recall.conversation_tokens = 1000;
  MemoryOs os = AskedAfterTurns(config, 4);
  const std::vector<PageRef> turns = TurnPages(os.conversation());
  EXPECT_EQ(RunsOf(Recall(os, PagesOf(0, 96), turns)),
            (std::vector<TokenSpan>{{115, 118}, {118, 121}, {121, 124}, {85, 88}, {88, 96}}));
}

TEST(MemoryOsTest, RecallDropsFromTheFrontWhenTheZoneIsFull) {
  MemoryOs os(SmallConfig());
  for (int i = 0; i < 5; ++i) os.Observe(32, Origin::kRead);
  const std::vector<PageRef> pages = PagesOf(0, 160);
  const std::vector<PageRef> wanted{pages[1], pages[3], pages[5], pages[7]};
  const std::vector<Placement> placements = Recall(os, wanted);
  ASSERT_EQ(placements.size(), 3U) << "20 tokens: two pages and the end of a third";
  EXPECT_EQ(placements[0].page, pages[3]);
  EXPECT_EQ(placements[0].first_token, 4);
  EXPECT_EQ(placements[0].tokens, 4);
  EXPECT_EQ(placements[0].position, 4);
  EXPECT_EQ(placements[2].page, pages[7]);
}

TEST(MemoryOsTest, OtherStreamsWaitUntilSomethingHasLeft) {
  MemoryOsConfig config = SmallConfig();
  config.stream = 7;
  MemoryOs os(config);
  os.Observe(10, Origin::kRead);
  const std::vector<PageRef> other = PagesOf(3, 16);
  EXPECT_EQ(os.BeginPrompt().size(), 1U);
  EXPECT_TRUE(Recall(os, other).empty()) << "positions 4 .. 24 are not free";
  EXPECT_EQ(os.NextPosition(), 10) << "and the frame is still a plain forward";

  os.Observe(42, Origin::kRead);
  EXPECT_EQ(os.rolling(), (TokenSpan{12, 52}));
  const auto placements = Recall(os, other);
  ASSERT_EQ(placements.size(), 2U);
  EXPECT_EQ(placements[0].position, 8) << "tokens 0-3 are the sinks of another stream, not of this one";
  EXPECT_EQ(placements[0].tokens, 8);
  EXPECT_EQ(placements[1].position, 16);
  EXPECT_EQ(Recall(os, PagesOf(7, 10)).size(), 2U) << "tokens 4-9 of the own stream";
}

TEST(MemoryOsTest, WithoutArchivingNothingIsArchivedAndAnythingMayLeave) {
  MemoryOs os(SmallConfig());
  os.Observe(20, Origin::kRead);
  MemoryOs question = os.Branch();
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(Only<ArchiveAction>(question.Observe(10, Origin::kGenerated)).empty());
  }
  EXPECT_TRUE(question.EndOfText().empty());
  EXPECT_EQ(question.archived_until(), 16);
  EXPECT_GT(question.rolling().begin, 16);

  EXPECT_EQ(os.stream_end(), 20) << "the original knows nothing of it";
  EXPECT_EQ(os.archived_until(), 16);
}

TEST(MemoryOsTest, ResumeShortStream) {
  MemoryOs os(SmallConfig());
  const std::vector<PageRef> pages = PagesOf(0, 44);
  const auto placements = os.Resume({.stream_end = 44, .pages = pages});
  ASSERT_EQ(placements.size(), 6U) << "one run a page, the first with the sinks";
  int64_t next = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    EXPECT_EQ(placements[i].page, pages[i]);
    EXPECT_EQ(placements[i].position, next);
    EXPECT_EQ(placements[i].first_token, 0);
    next += placements[i].tokens;
  }
  EXPECT_EQ(next, 44);
  EXPECT_EQ(os.NextPosition(), 44);
  EXPECT_EQ(os.archived_until(), 44);
  EXPECT_EQ(os.rolling(), (TokenSpan{4, 44}));
}

TEST(MemoryOsTest, ResumeLongStream) {
  MemoryOs os(SmallConfig());
  std::vector<PageRef> pages = PagesOf(0, 100);
  pages.push_back({99, 0, 5, {0, 8}});  // of another stream
  const auto placements = os.Resume({.stream_end = 100, .pages = pages});
  ASSERT_EQ(placements.size(), 7U);
  EXPECT_EQ(placements[0].page, pages[0]);
  EXPECT_EQ(placements[0].tokens, 4);
  EXPECT_EQ(placements[0].position, 0);
  EXPECT_EQ(placements[1].page, pages[7]);
  EXPECT_EQ(placements[1].first_token, 4);
  EXPECT_EQ(placements[1].tokens, 4);
  EXPECT_EQ(placements[1].position, 24);
  EXPECT_EQ(placements[6].page, pages[12]);
  EXPECT_EQ(placements[6].position, 60);
  EXPECT_EQ(os.rolling(), (TokenSpan{60, 100}));
  EXPECT_EQ(os.sinks(), 4);
  EXPECT_EQ(os.NextPosition(), 64);
}

TEST(MemoryOsTest, AResumedConversationComesBackForTheNextQuestion) {
  MemoryOsConfig config = SmallConfig();
  config.recall.prompt_rolling_tokens = 0;
  MemoryOs os(config);
  os.Observe(70, Origin::kRead);
  os.Observe(5, Origin::kPrompt);
  os.EndOfText();
  ASSERT_EQ(os.read_until(), 70);
  MemoryOs again(config);
  again.Resume(
      {.stream_end = 75, .pages = PagesOf(0, 75), .rolling_from = os.rolling().begin, .read_until = os.read_until()});
  EXPECT_EQ(again.rolling(), os.rolling());
  os.BeginPrompt();
  again.BeginPrompt();
  EXPECT_EQ(os.conversation(), (TokenSpan{70, 75}));
  EXPECT_EQ(again.conversation(), os.conversation());
  EXPECT_EQ(again.rolling(), os.rolling());
}

TEST(MemoryOsTest, AResumedStreamRecallsWhenItWouldHave) {
  MemoryOsConfig config = SmallConfig();
  config.recall = {.prompt = false, .recent = true, .recent_every = 10, .protect_tokens = 0};
  MemoryOs os(config);
  os.Observe(60, Origin::kRead);
  os.Observe(7, Origin::kGenerated);
  os.EndOfText();
  MemoryOs again(config);
  again.Resume({.stream_end = 67,
                .pages = PagesOf(0, 67),
                .rolling_from = os.rolling().begin,
                .read_until = os.read_until(),
                .recall_counts = os.recall_counts()});
  EXPECT_EQ(again.recall_counts(), os.recall_counts());
  EXPECT_TRUE(Only<RecallAction>(again.Observe(2, Origin::kGenerated)).empty());
  EXPECT_EQ(Only<RecallAction>(again.Observe(1, Origin::kGenerated)).size(), 1U);
  MemoryOs anew(config);
  anew.Resume({.stream_end = 67, .pages = PagesOf(0, 67)});
  EXPECT_TRUE(Only<RecallAction>(anew.Observe(9, Origin::kGenerated)).empty());
}

TEST(MemoryOsTest, AResumedStreamPassesOverSignalsAsLong) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter = {.block_tokens = 40, .least_tokens = 12, .cooldown_tokens = 50};
  MemoryOs os(config);
  os.Observe(10, Origin::kGenerated);
  os.Raise(Signal::kSummarize);  // too soon
  os.EndOfText();
  const auto blocks_at = [](MemoryOs& on, int64_t end) {
    on.Observe(end - on.stream_end(), Origin::kGenerated);
    return Only<ArchiveAction>(on.Raise(Signal::kSummarize)).size();
  };
  for (const int64_t until : {os.cooldown_until(), int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    MemoryOs again(config);
    again.Resume({.stream_end = 10, .pages = PagesOf(0, 10), .cooldown_until = until});
    EXPECT_EQ(blocks_at(again, 30), until == 60 ? 0U : 1U) << until;
  }
  EXPECT_EQ(blocks_at(os, 30), 0U);
  EXPECT_EQ(os.cooldown_until(), 60);
}

TEST(MemoryOsTest, ResumeTakesNumbersThatNoFrameHas) {
  for (const int64_t number : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    MemoryOs os(SmallConfig());
    os.Resume({.stream_end = 100,
               .pages = PagesOf(0, 100),
               .rolling_from = number,
               .read_until = number,
               .recall_counts = RecallCounts{number, number, number, true},
               .cooldown_until = number});
    EXPECT_GE(os.read_until(), 0);
    EXPECT_LE(os.read_until(), 100);
    EXPECT_EQ(os.BeginPrompt().size(), 1U);
    os.Observe(os.Room(), Origin::kGenerated);
    EXPECT_EQ(os.rolling(), (TokenSpan{os.stream_end() - 40, os.stream_end()}));
  }
}

TEST(MemoryOsTest, ResumeBehindForgottenBlocks) {
  MemoryOs os(SmallConfig());
  std::vector<PageRef> pages = PagesOf(0, 40);
  pages.erase(pages.begin(), pages.begin() + 2);  // the first block is gone, and the sinks with it
  const auto placements = os.Resume({.stream_end = 40, .pages = pages});
  ASSERT_EQ(placements.size(), 3U);
  EXPECT_EQ(placements[0].position, 24);
  EXPECT_EQ(os.sinks(), 0);
  EXPECT_EQ(os.rolling(), (TokenSpan{16, 40}));

  MemoryOs nothing(SmallConfig());
  EXPECT_TRUE(nothing.Resume({}).empty());
  EXPECT_EQ(nothing.NextPosition(), 0);
}

TEST(MemoryOsTest, AnchorsAndTombstonesAreTakenBeforeTheirTextLeaves) {
  const MemoryOsConfig config = WithAnchorZone(2, 3);
  MemoryOs os(config);
  const std::vector<Boundary> turn{{10, BoundaryKind::kTurn}};
  std::vector<Action> actions = os.Observe(30, Origin::kRead, turn);
  os.EndOfText();
  actions = os.Observe(30, Origin::kRead);
  const auto evictions = Only<EvictAction>(actions);
  ASSERT_EQ(evictions.size(), 1U);
  ASSERT_EQ(evictions[0].tokens, 16) << "4 .. 20";
  ASSERT_EQ(evictions[0].keeps.size(), 2U);
  EXPECT_EQ(evictions[0].keeps[0].span, (TokenSpan{10, 12})) << "a turn began there; the text's first two are sinks";
  EXPECT_TRUE(evictions[0].keeps[1].tombstone);
  EXPECT_EQ(evictions[0].keeps[1].span, (TokenSpan{4, 20}));
  EXPECT_EQ(evictions[0].anchor_positions, (std::vector<int64_t>{4, 6, 7}));
  EXPECT_EQ(CopiesOf(os.frame()).topics, (std::vector<int64_t>{30})) << "the end of a text";
  EXPECT_EQ(os.NextPosition(), 4 + 8 + 20 + 40);
  std::vector<EventKind> said;
  for (const Event& event : os.trace()) {
    if (event.what == EventKind::kAnchor || event.what == EventKind::kTombstone) said.push_back(event.what);
  }
  EXPECT_EQ(said, (std::vector<EventKind>{EventKind::kAnchor, EventKind::kTombstone}));

  // In a new process, while all of their text is still in the memory.
  MemoryOs again(config);
  os.EndOfText();
  again.Resume(
      {.stream_end = 60, .pages = PagesOf(0, 60), .rolling_from = os.rolling().begin, .zones = os.frame().Save()});
  EXPECT_EQ(CopiesOf(again.frame()), CopiesOf(os.frame()));
  EXPECT_EQ(again.frame().CopyPositions(), os.frame().CopyPositions());
  std::vector<std::pair<EventKind, TokenSpan>> stands;
  for (const Event& event : again.trace()) stands.emplace_back(event.what, event.span);
  EXPECT_EQ(stands,
            (std::vector<std::pair<EventKind, TokenSpan>>{
                {EventKind::kResume, os.rolling()}, {EventKind::kTombstone, {4, 20}}, {EventKind::kAnchor, {10, 12}}}));
  std::vector<PageRef> pages = PagesOf(0, 60);
  pages.erase(pages.begin() + 1);
  MemoryOs forgotten(config);
  forgotten.Resume({.stream_end = 60, .pages = pages, .rolling_from = os.rolling().begin, .zones = os.frame().Save()});
  EXPECT_TRUE(CopiesOf(forgotten.frame()).empty());
  EXPECT_EQ(forgotten.trace().size(), 1U);
}

TEST(MemoryOsTest, ATraceSaysAllThatBecomesOfTheAnchorZone) {
  MemoryOs os(WithAnchorZone(3, 2));
  for (int step = 1; step < 40; ++step) {
    os.Observe(1 + step * 7 % 20, Origin::kRead);
    if (step % 3 == 0) os.EndOfText();
    std::vector<int64_t> slots;
    std::vector<TokenSpan> stones;
    for (const Event& event : os.trace()) {
      if (event.what == EventKind::kAnchor) {
        for (int64_t t = event.span.begin; t < event.span.end; ++t) slots.push_back(t);
      } else if (event.what == EventKind::kAnchorDropped) {
        std::erase_if(slots, [&event](int64_t t) { return t >= event.span.begin && t < event.span.end; });
      } else if (event.what == EventKind::kTombstone) {
        stones.push_back(event.span);
      } else if (event.what == EventKind::kTombstonesMerged) {
        ASSERT_EQ(std::erase_if(stones, [&event](const TokenSpan& stone) { return stone.Overlaps(event.span); }), 2);
        stones.push_back(event.span);
        std::sort(stones.begin(), stones.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
      }
    }
    std::vector<int64_t> expected;
    for (const TokenSpan& anchor : CopiesOf(os.frame()).anchors) {
      for (int64_t t = anchor.begin; t < anchor.end; ++t) expected.push_back(t);
    }
    ASSERT_EQ(slots, expected) << step;
    ASSERT_EQ(stones.size(), CopiesOf(os.frame()).tombstones.size()) << step;
    for (size_t i = 0; i < stones.size(); ++i) ASSERT_EQ(stones[i], CopiesOf(os.frame()).tombstones[i].span) << step;
  }
  const auto times = [&os](EventKind what) {
    return std::count_if(os.trace().begin(), os.trace().end(),
                         [what](const Event& event) { return event.what == what; });
  };
  EXPECT_GT(times(EventKind::kAnchorDropped), 5);
  EXPECT_GT(times(EventKind::kTombstonesMerged), 5);
}

TEST(MemoryOsTest, TraceTellsStatesAndIsBounded) {
  MemoryOs os(SmallConfig());
  os.Observe(60, Origin::kRead);
  os.BeginPrompt();
  Recall(os, std::vector<PageRef>{PagesOf(0, 60)[1]});
  os.ClearRecalled();
  std::vector<std::pair<EventKind, State>> seen;
  for (const Event& event : os.trace()) seen.emplace_back(event.what, event.state);
  const std::vector<std::pair<EventKind, State>> expected{
      {EventKind::kArchive, State::kArchiving}, {EventKind::kArchive, State::kArchiving},
      {EventKind::kArchive, State::kArchiving}, {EventKind::kEvict, State::kGenerating},
      {EventKind::kRecall, State::kRetrieving}, {EventKind::kRestore, State::kRetrieving},
      {EventKind::kClear, State::kGenerating}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(os.trace()[3].span, (TokenSpan{4, 20}));
  EXPECT_EQ(os.trace()[5].tokens, 8);
  EXPECT_EQ(os.trace()[5].restored, (std::vector<RestoredRun>{{1, 0, {8, 16}}}));

  for (size_t i = 0; i < 3 * kTraceCapacity; ++i) os.ClearRecalled();
  EXPECT_LE(os.trace().size(), kTraceCapacity);
  EXPECT_GE(os.trace().size(), kTraceCapacity * 9 / 10);
  EXPECT_EQ(os.trace().back().what, EventKind::kClear);
}

TEST(MemoryOsTest, TraceNamesItsKindsAsPicturesAndDocumentsDo) {
  const std::map<EventKind, std::string_view> names{{EventKind::kArchive, "archive"},
                                                    {EventKind::kEvict, "evict"},
                                                    {EventKind::kRecall, "recall"},
                                                    {EventKind::kRecallWaits, "recall waits"},
                                                    {EventKind::kRestore, "restore"},
                                                    {EventKind::kLeftOut, "left out"},
                                                    {EventKind::kClear, "clear"},
                                                    {EventKind::kResume, "resume"},
                                                    {EventKind::kSummarizeSignal, "summarize signal"},
                                                    {EventKind::kRetrieveSignal, "retrieve signal"},
                                                    {EventKind::kSignalPassedOver, "signal passed over"},
                                                    {EventKind::kAnchor, "anchor"},
                                                    {EventKind::kAnchorDropped, "anchor dropped"},
                                                    {EventKind::kTrim, "trim"},
                                                    {EventKind::kTrimAgain, "trim again"},
                                                    {EventKind::kKeptDropped, "kept dropped"},
                                                    {EventKind::kTombstone, "tombstone"},
                                                    {EventKind::kTombstonesMerged, "tombstones merged"}};
  for (const auto& [kind, name] : names) EXPECT_EQ(NameOf(kind), name);
}

TEST(MemoryOsTest, TraceTellsWhatAskedForARecall) {
  MemoryOsConfig config = SmallConfig();
  config.recall = {.recent = true, .periodic = true, .signal = true, .recent_every = 5, .periodic_every = 3};
  MemoryOs os(config);
  os.BeginPrompt();
  os.Observe(3, Origin::kGenerated);
  os.Observe(2, Origin::kGenerated);
  os.Raise(Signal::kRetrieve);
  using enum RecallTrigger;
  std::vector<RecallTrigger> triggers;
  for (const Event& event : os.trace()) {
    EXPECT_EQ(event.what == EventKind::kRecall, event.trigger.has_value()) << NameOf(event.what);
    if (event.trigger) triggers.push_back(*event.trigger);
  }
  EXPECT_EQ(triggers, (std::vector<RecallTrigger>{kPrompt, kPeriodic, kRecent, kSignal}));
}

TEST(MemoryOsTest, TraceTellsWhyABlockEnds) {
  MemoryOsConfig config = SmallConfig();
  config.segmenter = {.block_tokens = 16, .least_tokens = 4, .cooldown_tokens = 6};
  config.recall.prompt_rolling_tokens = 0;
  MemoryOs os(config);
  using enum BoundaryKind;
  os.Observe(24, Origin::kRead, std::vector<Boundary>{{15, kSentence}, {21, kTurn}});
  os.Observe(18, Origin::kRead, std::vector<Boundary>{{30, kSignal}, {33, kSignal}});
  os.Observe(19, Origin::kRead);
  os.EndOfText();
  os.Observe(2, Origin::kRead);
  os.BeginPrompt();
  using Ended = std::pair<TokenSpan, BlockEnd>;
  std::vector<Ended> ended;
  for (const Event& event : os.trace()) {
    EXPECT_EQ(event.what == EventKind::kArchive, event.ended_by.has_value()) << NameOf(event.what);
    if (event.ended_by) ended.emplace_back(event.span, *event.ended_by);
  }
  EXPECT_EQ(ended, (std::vector<Ended>{{{0, 15}, BlockEnd::kSentence},
                                       {{15, 21}, BlockEnd::kTurn},
                                       {{21, 30}, BlockEnd::kSignal},
                                       {{30, 46}, BlockEnd::kLength},
                                       {{46, 61}, BlockEnd::kText},
                                       {{61, 63}, BlockEnd::kQuestion}}));
  const std::set<EventKind> of_signals{EventKind::kSummarizeSignal, EventKind::kRetrieveSignal,
                                       EventKind::kSignalPassedOver};
  std::vector<std::pair<EventKind, int64_t>> signals;
  for (const Event& event : os.trace()) {
    if (of_signals.contains(event.what)) signals.emplace_back(event.what, event.span.begin);
  }
  EXPECT_EQ(signals, (std::vector<std::pair<EventKind, int64_t>>{{EventKind::kSummarizeSignal, 30},
                                                                 {EventKind::kSummarizeSignal, 33},
                                                                 {EventKind::kSignalPassedOver, 33}}));
}

TEST(MemoryOsTest, WhatIsFedAgainIsNotArchivedAgainAndLeavesTheFrameAsItWas) {
  MemoryOsConfig config = WithAnchorZone(3, 2);
  MemoryOs os(config);
  for (int i = 0; i < 7; ++i) os.Observe(12, Origin::kRead);
  const MemoryOs stood = os;  // 84 tokens, 80 of them archived
  const auto feed = [](MemoryOs& to) {
    size_t archived = 0;
    for (const int64_t tokens : {12, 12, 12, 8})
      archived += Only<ArchiveAction>(to.Observe(tokens, Origin::kRead)).size();
    return archived;
  };
  EXPECT_EQ(feed(os), 3U);
  ASSERT_EQ(os.archived_until(), 128);

  MemoryOs again(config);
  again.Resume({.stream_end = 84,
                .pages = PagesOf(0, 128),
                .rolling_from = stood.rolling().begin,
                .read_until = 84,
                .zones = stood.frame().Save(),
                .recall_counts = stood.recall_counts(),
                .archived_until = 128});
  EXPECT_EQ(CopiesOf(again.frame()), CopiesOf(stood.frame())) << "no topic begins in the middle of a text";
  EXPECT_EQ(feed(again), 0U);
  EXPECT_EQ(again.stream_end(), 128);
  EXPECT_EQ(again.rolling(), os.rolling());
  EXPECT_EQ(again.NextPosition(), os.NextPosition());
  EXPECT_EQ(CopiesOf(again.frame()), CopiesOf(os.frame()));
  EXPECT_EQ(again.archived_until(), 128);
  EXPECT_EQ(Only<ArchiveAction>(again.Observe(16, Origin::kRead)).size(), 1U) << "what comes behind it is new";

  MemoryOs from_the_beginning(config);
  from_the_beginning.Resume({.archived_until = 128});
  for (int i = 0; i < 7; ++i) from_the_beginning.Observe(12, Origin::kRead);
  EXPECT_EQ(feed(from_the_beginning), 0U);
  EXPECT_EQ(from_the_beginning.rolling(), os.rolling());
  EXPECT_EQ(CopiesOf(from_the_beginning.frame()), CopiesOf(os.frame()));
  const ResumeState archived_less{.stream_end = 84, .rolling_from = 0, .read_until = 84, .archived_until = 83};
  EXPECT_DEATH(again.Resume(archived_less), "CHECK failed");
}

TEST(MemoryOsTest, TraceTellsWhatWasAskedForInVain) {
  MemoryOsConfig config = SmallConfig();
  config.recall = {.periodic = true, .signal = true, .periodic_every = 4, .protect_tokens = 7};
  MemoryOs os(config);
  os.Observe(60, Origin::kRead);
  os.BeginPrompt();
  Recall(os, PagesOf(0, 60));
  const size_t before = os.trace().size();
  os.Raise(Signal::kSummarize);  // all of it is archived, or too soon
  for (int i = 0; i < 6; ++i) os.Observe(1, Origin::kGenerated);
  os.Raise(Signal::kRetrieve);
  std::vector<std::pair<EventKind, std::optional<RecallTrigger>>> said;
  for (size_t i = before; i < os.trace().size(); ++i) {
    if (os.trace()[i].what != EventKind::kArchive && os.trace()[i].what != EventKind::kEvict) {
      said.emplace_back(os.trace()[i].what, os.trace()[i].trigger);
    }
  }
  using enum RecallTrigger;
  EXPECT_EQ(said,
            (std::vector<std::pair<EventKind, std::optional<RecallTrigger>>>{{EventKind::kSummarizeSignal, {}},
                                                                             {EventKind::kSignalPassedOver, {}},
                                                                             {EventKind::kRecallWaits, kPeriodic},
                                                                             {EventKind::kRetrieveSignal, {}},
                                                                             {EventKind::kRecallWaits, kSignal}}));
  const Event& left_out = os.trace()[before - 1];
  EXPECT_EQ(left_out.what, EventKind::kLeftOut);
  const Event& restore = os.trace()[before - 2];
  EXPECT_EQ(restore.tokens, config.residency.recalled_tokens);
  EXPECT_EQ(restore.tokens + left_out.tokens, os.rolling().begin - os.sinks());

  config.recall = {};
  MemoryOs deaf(config);
  deaf.Raise(Signal::kRetrieve);
  EXPECT_EQ(deaf.trace().back().what, EventKind::kSignalPassedOver);
}

TEST(MemoryOsTest, WhatABranchDecidedIsInTheTraceAndMarked) {
  MemoryOs os(SmallConfig());
  os.Observe(60, Origin::kRead);
  const size_t before = os.trace().size();
  MemoryOs question = os.Branch();
  EXPECT_EQ(question.trace().size(), before) << "what was decided before is common";
  question.BeginPrompt();
  Recall(question, std::vector<PageRef>{PagesOf(0, 60)[1]});
  question.Observe(30, Origin::kPrompt);
  MemoryOs within = question.Branch();
  within.ClearRecalled();
  question.TakeTrace(within);
  MemoryOs listening = question.Branch();
  listening.ClearRecalled();  // and is not taken over
  os.TakeTrace(question);
  os.ClearRecalled();

  std::vector<EventKind> seen;
  for (size_t i = 0; i < os.trace().size(); ++i) {
    const Event& event = os.trace()[i];
    const bool branched = i >= before && i + 1 < os.trace().size();
    EXPECT_EQ(event.branched_at, branched ? std::optional<int64_t>(60) : std::nullopt) << NameOf(event.what);
    if (i >= before) seen.push_back(event.what);
  }
  EXPECT_EQ(seen, (std::vector<EventKind>{EventKind::kRecall, EventKind::kRestore, EventKind::kEvict, EventKind::kClear,
                                          EventKind::kClear}));
  EXPECT_EQ(os.trace()[before + 2].stream_position, 90) << "where the branch stood";
  EXPECT_EQ(os.stream_end(), 60);
  EXPECT_DEATH(os.TakeTrace(MemoryOs(SmallConfig())), "CHECK failed");
}

TEST(MemoryOsTest, ALongBranchLeavesTheTraceItsBound) {
  MemoryOs os(SmallConfig());
  os.Observe(60, Origin::kRead);
  MemoryOs question = os.Branch();
  for (size_t i = 0; i < 3 * kTraceCapacity; ++i) question.ClearRecalled();
  os.TakeTrace(question);
  EXPECT_LE(os.trace().size(), kTraceCapacity);
  EXPECT_GE(os.trace().size(), kTraceCapacity * 9 / 10);
  EXPECT_EQ(os.trace().back().branched_at, 60);
}

// A host that keeps what stands at which frame position by doing as the actions say, knowing nothing of zones.
struct ModelHost {
  explicit ModelHost(const MemoryOsConfig& of) : config(of) {}

  MemoryOsConfig config;
  std::map<int64_t, int64_t> at_position;                   // own stream, not recalled: position -> token
  std::map<int64_t, std::pair<int64_t, int64_t>> recalled;  // position -> (stream, token)
  std::vector<int64_t> anchors;                             // tokens of the own stream, slot by slot
  std::set<int64_t> chosen;                                 // tokens of closed blocks that may be kept
  std::set<int64_t> kept;                                   // those that are
  std::vector<TokenSpan> archived;
  std::vector<PageRef> pages;                   // what was archived, in pages of 8
  std::set<std::pair<int64_t, int64_t>> sinks;  // (stream, token), as the pages say; more than what is resident
  bool opened = false;                          // an eviction has been executed

  void Forward(const MemoryOs& os, int64_t tokens) {
    for (int64_t i = 0; i < tokens; ++i) {
      ASSERT_TRUE(at_position.emplace(os.NextPosition() + i, os.stream_end() + i).second);
    }
  }

  void Execute(MemoryOs& os, const std::vector<Action>& actions) {
    int last_kind = 0;
    for (const Action& action : actions) {
      const auto* trim = std::get_if<TrimAction>(&action);
      const int kind = trim != nullptr ? 0 : static_cast<int>(action.index());
      ASSERT_GE(kind, last_kind) << "archive and trim, evict, recall";
      last_kind = kind;
      if (trim != nullptr) {
        Trim(os, *trim);
      } else if (const auto* archive = std::get_if<ArchiveAction>(&action)) {
        ASSERT_TRUE(os.archiving());
        std::set<int64_t> resident;
        for (const auto& [position, token] : at_position) resident.insert(token);
        for (int64_t t = archive->span.begin; t < archive->span.end; ++t) ASSERT_TRUE(resident.contains(t)) << t;
        ASSERT_LE(archive->span.size(), config.segmenter.block_tokens);
        archived.push_back(archive->span);
        AddPages(os.stream(), *archive);
      } else if (const auto* evict = std::get_if<EvictAction>(&action)) {
        KeepAnchors(*evict);
        KeepChosen(os, evict->tokens);
        Evict(*evict, os.sinks(), os.archiving());
        ASSERT_EQ(evict->anchor_positions, os.frame().CopyPositions());
        ASSERT_EQ(anchors.size() + CopiesOf(os.frame()).tombstones.size(), evict->anchor_positions.size());
        for (const Keep& keep : evict->keeps) {
          ASSERT_EQ(keep.span.end <= os.rolling().begin && keep.span.begin >= os.rolling().begin - evict->tokens, true);
        }
      }
    }
  }

  void AddPages(int64_t stream, const ArchiveAction& archive) {
    const int64_t block = pages.empty() ? 1 : pages.back().block + 1;
    const TokenSpan its_sinks{archive.span.begin, archive.span.begin + archive.sink_tokens};
    for (int32_t page = 0; archive.span.begin + page * 8 < archive.span.end; ++page) {
      const int64_t begin = archive.span.begin + page * 8;
      const TokenSpan span{begin, std::min(begin + 8, archive.span.end)};
      pages.push_back({block, page, stream, span, static_cast<int32_t>(span.Intersect(its_sinks).size())});
    }
    AddSinks(pages);
  }

  void AddSinks(const std::vector<PageRef>& of) {
    for (const PageRef& page : of) {
      for (int64_t i = 0; i < page.sink_tokens; ++i) sinks.emplace(page.stream, page.span.begin + i);
    }
  }

  void KeepAnchors(const EvictAction& evict) {
    std::set<int64_t> resident;
    for (const auto& [position, token] : at_position) resident.insert(token);
    for (const Keep& keep : evict.keeps) {
      for (int64_t t = keep.span.begin; t < keep.span.end; ++t) ASSERT_TRUE(resident.contains(t)) << t;
      if (keep.tombstone) continue;
      for (int64_t t = keep.dropped.begin; t < keep.dropped.end; ++t) ASSERT_EQ(std::erase(anchors, t), 1) << t;
      for (int64_t t = keep.span.begin; t < keep.span.end; ++t) anchors.push_back(t);
    }
  }

  // Some of what may be chosen, by no order that is known before.
  void Trim(MemoryOs& os, const TrimAction& trim) {
    ASSERT_TRUE(archived.empty() || archived.back() == trim.block) << "once the archive has it";
    std::vector<int64_t> tokens;
    for (const TokenSpan& run : trim.from) {
      for (int64_t t = run.begin; t < run.end; ++t) {
        ASSERT_TRUE(Resident(t) && std::ranges::find(anchors, t) == anchors.end()) << t;
        tokens.push_back(t);
      }
    }
    ASSERT_GE(std::ssize(tokens), trim.tokens);
    std::shuffle(tokens.begin(), tokens.end(), std::mt19937_64(static_cast<uint64_t>(trim.block.begin)));
    tokens.resize(static_cast<size_t>(trim.tokens));
    os.Choose(tokens);
    chosen.insert(tokens.begin(), tokens.end());
  }

  // What is held was chosen, was held or leaves just now, and is no anchor.
  void KeepChosen(const MemoryOs& os, int64_t leaving) {
    const std::vector<int64_t> held = KeptOf(os).Held();
    for (const int64_t token : held) {
      const bool leaves = token < os.rolling().begin && token >= os.rolling().begin - leaving;
      ASSERT_TRUE(kept.contains(token) || (leaves && chosen.contains(token))) << token;
    }
    kept = {held.begin(), held.end()};
    ASSERT_EQ(kept.size(), held.size());
  }

  [[nodiscard]] bool Resident(int64_t token) const {
    const auto is_it = [token](const auto& at) { return at.second == token; };
    return std::ranges::any_of(at_position, is_it) || std::ranges::find(anchors, token) != anchors.end();
  }

  // What should come back of `wanted`: every token that is neither resident nor a sink of its stream, of a page named
  // twice by its last mention, cut to R from the back. Then checks that it does, and how.
  void Bring(MemoryOs& os, const std::vector<PageRef>& wanted) {
    std::vector<std::pair<int64_t, int64_t>> expected;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const PageRef& page = wanted[i];
      if (std::find(wanted.begin() + static_cast<ptrdiff_t>(i) + 1, wanted.end(), page) != wanted.end()) continue;
      for (int64_t t = page.span.begin + page.sink_tokens; t < page.span.end; ++t) {
        if (opened && !(page.stream == os.stream() && Resident(t))) expected.emplace_back(page.stream, t);
      }
    }
    const int64_t found = std::ssize(expected);
    const auto budget = static_cast<size_t>(config.residency.recalled_tokens);
    if (expected.size() > budget) expected.erase(expected.begin(), expected.end() - static_cast<ptrdiff_t>(budget));

    recalled.clear();
    std::vector<std::pair<int64_t, int64_t>> got;
    const std::vector<Placement> placements = Recall(os, wanted);
    int64_t next = placements.empty() ? 0 : placements.front().position;
    for (const Placement& placement : placements) {
      ASSERT_EQ(placement.position, next) << "contiguous";
      ASSERT_GE(placement.tokens, 1);
      for (int32_t i = 0; i < placement.tokens; ++i) {
        got.emplace_back(placement.page.stream, placement.page.span.begin + placement.first_token + i);
        recalled.emplace(next++, got.back());
      }
    }
    ASSERT_EQ(got, expected);
    if (!got.empty()) {
      ASSERT_EQ(next, os.NextPosition() - os.rolling().size()) << "right-aligned against rolling";
    }
    if (!opened) return;
    const Event& last = os.trace().back();
    ASSERT_EQ(last.what, found > std::ssize(got) ? EventKind::kLeftOut : EventKind::kRestore);
    ASSERT_EQ(last.tokens, found > std::ssize(got) ? found - std::ssize(got) : found);
  }

  void Evict(const EvictAction& evict, int64_t sinks, bool archiving) {
    opened = true;
    std::map<int64_t, int64_t> after;
    int64_t to_drop = evict.tokens;
    for (const auto& [position, token] : at_position) {
      if (token < sinks) {
        after.emplace(position, token);
      } else if (to_drop > 0) {
        if (archiving) {
          ASSERT_FALSE(archived.empty());
          ASSERT_LT(token, archived.back().end) << "left without having been archived";
        }
        --to_drop;
      } else {
        after.emplace(position + evict.delta, token);
      }
    }
    ASSERT_EQ(to_drop, 0);
    at_position = std::move(after);
  }
};

void CheckInvariants(const MemoryOs& os, const ModelHost& host) {
  const ResidencyConfig& config = host.config.residency;
  ASSERT_GE(os.Room(), 1);
  ASSERT_EQ(static_cast<int64_t>(host.at_position.size()), os.sinks() + os.rolling().size());
  ASSERT_LT(os.rolling().size(), config.rolling_tokens + config.evict_tokens);
  ASSERT_EQ(static_cast<int64_t>(host.recalled.size()), os.recalled_tokens());
  ASSERT_LE(os.recalled_tokens(), config.recalled_tokens);
  int64_t previous = -1;
  for (const auto& [position, token] : host.at_position) {
    ASSERT_GE(position, 0);
    ASSERT_LT(position, config.frame_tokens);
    ASSERT_FALSE(host.recalled.contains(position)) << "zones overlap at " << position;
    ASSERT_GT(token, previous) << "order of the stream";
    previous = token;
    if (token < os.sinks() || !host.opened) {
      ASSERT_EQ(position, token) << "sinks stay, and before the first eviction all is as in a plain forward";
    }
  }
  if (!os.rolling().empty()) {
    ASSERT_EQ(host.at_position.rbegin()->first, os.NextPosition() - 1);
  }
  for (const int64_t position : os.frame().CopyPositions()) {
    ASSERT_GE(position, config.sink_tokens);
    ASSERT_LT(position, config.sink_tokens + CopySlots(config));
    ASSERT_FALSE(host.at_position.contains(position));
  }
  std::set<int64_t> once;
  for (const auto& [position, token] : host.at_position) ASSERT_TRUE(once.insert(token).second) << token;
  for (const int64_t token : host.anchors) ASSERT_TRUE(once.insert(token).second) << token << " is an anchor, too";
  const std::vector<int64_t> shown = KeptOf(os).Shown();
  ASSERT_EQ(std::set<int64_t>(host.kept), ([&] {
              const std::vector<int64_t> held = KeptOf(os).Held();
              return std::set<int64_t>(held.begin(), held.end());
            }()));
  ASSERT_LE(std::ssize(host.kept), config.kept.tokens);
  ASSERT_EQ(os.frame().PositionOf("kept"), config.sink_tokens + CopySlots(config));
  for (const int64_t token : shown) ASSERT_TRUE(once.insert(token).second) << token << " is kept, too";
  for (const int64_t token : host.kept) {
    const bool back =
        std::ranges::any_of(host.recalled, [&](const auto& at) { return at.second == std::pair(os.stream(), token); });
    ASSERT_EQ(back, !std::ranges::binary_search(shown, token)) << token << ": shown, or recalled";
  }
  std::set<std::pair<int64_t, int64_t>> came_back;
  for (const auto& [position, what] : host.recalled) {
    ASSERT_GE(position, config.sink_tokens + CopySlots(config) + config.kept.tokens);
    ASSERT_FALSE(what.first == os.stream() && what.second >= os.rolling().begin && what.second < os.rolling().end);
    ASSERT_TRUE(came_back.insert(what).second) << what.second << " came back twice";
    ASSERT_FALSE(what.first == os.stream() && once.contains(what.second)) << what.second << " is resident twice";
    ASSERT_FALSE(host.sinks.contains(what)) << what.second << " is a sink of stream " << what.first;
  }
}

// What is recalled beside a conversation is in the frame once, and ends right before rolling.
void CheckConversation(MemoryOs& os, const ModelHost& host, const std::vector<PageRef>& wanted) {
  std::vector<PageRef> conversation;
  std::ranges::copy_if(host.pages, std::back_inserter(conversation), [&os](const PageRef& page) {
    return page.stream == os.stream() && page.span.begin >= os.conversation().begin &&
           page.span.end <= os.conversation().end;
  });
  std::set<std::pair<int64_t, int64_t>> came_back;
  int64_t next = os.NextPosition() - os.rolling().size();
  const std::vector<Placement> placements = Recall(os, wanted, conversation);
  for (const Placement& placement : placements) next -= placement.tokens;
  for (const Placement& placement : placements) {
    ASSERT_EQ(placement.position, next);
    next += placement.tokens;
    for (int32_t i = 0; i < placement.tokens; ++i) {
      const int64_t token = placement.page.span.begin + placement.first_token + i;
      ASSERT_TRUE(came_back.emplace(placement.page.stream, token).second) << token << " came back twice";
      ASSERT_FALSE(placement.page.stream == os.stream() && host.Resident(token)) << token << " is resident twice";
    }
  }
}

class RandomWalk : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomWalk, AgreesWithAModelHost) {
  std::mt19937_64 random(GetParam());
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  MemoryOsConfig config;
  config.stream = 2;
  config.segmenter.block_tokens = static_cast<int32_t>(1 + below(24));
  config.residency.sink_tokens = static_cast<int32_t>(below(6));
  config.residency.recalled_tokens = static_cast<int32_t>(below(40));
  config.residency.rolling_tokens = static_cast<int32_t>(config.segmenter.block_tokens + below(30));
  config.residency.evict_tokens = static_cast<int32_t>(1 + below(10));
  if (below(2) == 0) config.residency.anchor_tokens = static_cast<int32_t>(below(4));
  if (below(2) == 0) config.residency.tombstones = static_cast<int32_t>(below(5));
  if (below(2) == 0) {
    config.residency.kept = {.tokens = static_cast<int32_t>(config.segmenter.block_tokens + below(30)),
                             .share = static_cast<int32_t>(1 + below(4)),
                             .rungs = static_cast<int32_t>(1 + below(4))};
  }
  config.residency.frame_tokens =
      static_cast<int32_t>(config.residency.sink_tokens + CopySlots(config.residency) + config.residency.kept.tokens +
                           config.residency.recalled_tokens + config.residency.rolling_tokens +
                           config.residency.evict_tokens + 1 + below(20));
  config.recall = {.prompt = true, .recent = below(2) == 0, .recent_every = 7, .recent_blocks = 2, .protect_tokens = 0};
  ASSERT_TRUE(Validate(config).ok());

  MemoryOs os(config);
  ModelHost host(config);
  int64_t generated = 0;
  const auto recall = [&](MemoryOs& on, ModelHost& its_host) {
    std::vector<PageRef> pages = its_host.pages;
    const std::vector<PageRef> other = PagesOf(9, 30, 1'000'000, 5);
    its_host.AddSinks(other);
    pages.insert(pages.end(), other.begin(), other.end());
    std::shuffle(pages.begin(), pages.end(), random);
    pages.resize(static_cast<size_t>(below(static_cast<int64_t>(pages.size()) + 1)));
    if (!pages.empty()) pages.push_back(pages.front());
    MemoryOs talking = on.Branch();
    CheckConversation(talking, its_host, pages);
    its_host.Bring(on, pages);
  };

  for (int step = 0; step < 400; ++step) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const int64_t tokens = below(2) == 0 ? 1 : 1 + below(os.Room());
        const Origin origin = static_cast<Origin>(below(3));
        host.Forward(os, tokens);
        std::vector<Boundary> boundaries;
        for (int64_t at = below(9); at <= tokens; at += 1 + below(9)) {
          boundaries.push_back({os.stream_end() + at, static_cast<BoundaryKind>(below(4))});
        }
        const auto actions = os.Observe(tokens, origin, boundaries);
        host.Execute(os, actions);
        if (origin == Origin::kGenerated) generated += tokens;
        const bool due = config.recall.recent && origin == Origin::kGenerated && generated >= 7;
        ASSERT_EQ(Only<RecallAction>(actions).size(), due ? 1U : 0U);
        if (due) generated = 0;
        break;
      }
      case 4: {
        host.Execute(os, os.BeginPrompt());
        recall(os, host);
        break;
      }
      case 5:
        os.ClearRecalled();
        host.recalled.clear();
        break;
      case 6:
        if (below(4) == 0) host.Execute(os, os.EndOfText());
        break;
      default: {  // a question on a copy leaves no trace
        const int64_t end = os.stream_end();
        const TokenSpan rolling = os.rolling();
        MemoryOs copy = os.Branch();
        ModelHost copy_host = host;
        for (int i = 0; i < 5; ++i) {
          const int64_t tokens = 1 + below(copy.Room());
          copy_host.Forward(copy, tokens);
          copy_host.Execute(copy, copy.Observe(tokens, Origin::kGenerated));
          CheckInvariants(copy, copy_host);
        }
        ASSERT_EQ(os.stream_end(), end);
        ASSERT_EQ(os.rolling(), rolling);
      }
    }
    CheckInvariants(os, host);
    if (HasFatalFailure()) FAIL() << "step " << step;
  }

  host.Execute(os, os.EndOfText());
  int64_t next = 0;
  for (const TokenSpan& span : host.archived) {
    ASSERT_EQ(span.begin, next) << "every token once and in order";
    next = span.end;
  }
  ASSERT_EQ(next, os.stream_end());

  // A new process gets the frame back from the archive: sinks and the newest M tokens.
  MemoryOs resumed(config);
  ModelHost resumed_host(config);
  for (const Placement& placement :
       resumed.Resume({.stream_end = os.stream_end(), .pages = PagesOf(config.stream, os.stream_end())})) {
    for (int32_t i = 0; i < placement.tokens; ++i) {
      ASSERT_TRUE(resumed_host.at_position
                      .emplace(placement.position + i, placement.page.span.begin + placement.first_token + i)
                      .second);
    }
  }
  resumed_host.opened = os.stream_end() > config.residency.sink_tokens + config.residency.rolling_tokens;
  CheckInvariants(resumed, resumed_host);
  ASSERT_EQ(resumed.stream_end(), os.stream_end());
  ASSERT_EQ(resumed.rolling().size(),
            std::min<int64_t>(config.residency.rolling_tokens,
                              std::max<int64_t>(0, os.stream_end() - config.residency.sink_tokens)));

  // Told where rolling began, the new frame is the old one: nothing is nearer or further than it was.
  MemoryOs reopened(config);
  reopened.Resume({.stream_end = os.stream_end(),
                   .pages = PagesOf(config.stream, os.stream_end()),
                   .rolling_from = os.rolling().begin,
                   .zones = os.frame().Save()});
  if (os.sinks() == reopened.sinks()) {
    ASSERT_EQ(reopened.rolling(), os.rolling());
    if (reopened.evicted()) {
      ASSERT_EQ(CopiesOf(reopened.frame()), CopiesOf(os.frame()));
      ASSERT_EQ(KeptBlocksOf(reopened), KeptBlocksOf(os));
      ASSERT_EQ(KeptOf(reopened).Held(), KeptOf(os).Held());
    }
    ASSERT_EQ(reopened.Room(), os.Room());
  }
  if (os.evicted() == reopened.evicted()) {
    ASSERT_EQ(reopened.NextPosition(), os.NextPosition());
  }

  resumed_host.Forward(resumed, 1);
  resumed_host.archived = host.archived;
  resumed_host.Execute(resumed, resumed.Observe(1, Origin::kRead));
  CheckInvariants(resumed, resumed_host);
}

// Anything that a host may call, in any order, over several processes and with text forgotten between them.
TEST_P(RandomWalk, NoTokenIsResidentTwiceAndNoSinkComesBack) {
  std::mt19937_64 random(GetParam());
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  MemoryOsConfig config;
  config.stream = 2;
  config.segmenter = {.block_tokens = static_cast<int32_t>(6 + below(24)), .least_tokens = 3, .cooldown_tokens = 4};
  config.residency = {.sink_tokens = static_cast<int32_t>(below(12)),
                      .recalled_tokens = static_cast<int32_t>(10 + below(60)),
                      .rolling_tokens = static_cast<int32_t>(config.segmenter.block_tokens + below(20)),
                      .evict_tokens = static_cast<int32_t>(1 + below(10)),
                      .anchor_tokens = static_cast<int32_t>(below(12)),
                      .anchors = static_cast<int32_t>(below(5)),
                      .tombstones = static_cast<int32_t>(below(3)),
                      .kept = {.tokens = below(3) == 0 ? 0 : static_cast<int32_t>(30 + below(30)),
                               .share = static_cast<int32_t>(1 + below(4)),
                               .rungs = static_cast<int32_t>(1 + below(4))}};
  config.recall = {.recent = true, .signal = true, .prompt_rolling_tokens = 5, .recent_every = 9, .protect_tokens = 3};
  const auto fit_frame = [](ResidencyConfig& zones) {
    zones.frame_tokens = static_cast<int32_t>(zones.sink_tokens + CopySlots(zones) + zones.kept.tokens +
                                              zones.recalled_tokens + zones.rolling_tokens + zones.evict_tokens + 20);
  };
  fit_frame(config.residency);
  const std::vector<PageRef> other = PagesOf(9, 60, 1'000'000, 1 + below(20));
  MemoryOs os(config);
  ModelHost host(config);
  host.AddSinks(other);

  const auto recall = [&](MemoryOs& on, ModelHost& its_host) {
    // The newest pages and the zone's are those of which a part is resident.
    std::vector<PageRef> pages;
    for (const PageRef& page : its_host.pages) {
      bool near = page.span.end + 16 > on.rolling().begin || page.span.begin < 16;
      for (const TokenSpan& anchor : CopiesOf(on.frame()).anchors) near = near || anchor.Overlaps(page.span);
      for (const int64_t t : KeptOf(on).Held()) near = near || page.span.Overlaps({t, t + 1});
      if (below(near ? 2 : 12) == 0) pages.push_back(page);
    }
    for (const PageRef& page : other) {
      if (below(4) == 0) pages.push_back(page);
    }
    if (below(2) == 0) std::shuffle(pages.begin(), pages.end(), random);
    its_host.Bring(on, pages);
  };
  const auto step = [&](MemoryOs& on, ModelHost& its_host) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2: {
        const int64_t tokens = 1 + below(on.Room());
        its_host.Forward(on, tokens);
        std::vector<Boundary> boundaries;
        for (int64_t at = below(9); at <= tokens; at += 1 + below(25)) {
          boundaries.push_back({on.stream_end() + at, static_cast<BoundaryKind>(below(4))});
        }
        its_host.Execute(on, on.Observe(tokens, static_cast<Origin>(below(3)), boundaries));
        break;
      }
      case 3:
        its_host.Execute(on, on.Raise(below(2) == 0 ? Signal::kSummarize : Signal::kRetrieve));
        break;
      case 4:
        its_host.Execute(on, on.BeginPrompt());
        break;
      case 5:
        on.ClearRecalled();
        its_host.recalled.clear();
        break;
      case 6:
        its_host.Execute(on, on.EndOfText());
        break;
      default:
        recall(on, its_host);
    }
    CheckInvariants(on, its_host);
  };
  // Another process, perhaps after a part was forgotten, and with another number of sinks.
  const auto reopen = [&] {
    host.Execute(os, os.EndOfText());
    if (below(3) == 0 && !host.pages.empty()) {
      const int64_t gone = host.pages[static_cast<size_t>(below(std::ssize(host.pages)))].block;
      std::erase_if(host.pages, [gone](const PageRef& page) { return page.block == gone; });
    }
    if (below(3) == 0) config.residency.sink_tokens = static_cast<int32_t>(below(12));
    fit_frame(config.residency);
    MemoryOs again(config);
    ModelHost its_host(config);
    its_host.pages = host.pages;
    its_host.sinks = host.sinks;
    its_host.archived = host.archived;
    for (const Placement& placement : again.Resume({.stream_end = os.stream_end(),
                                                    .pages = host.pages,
                                                    .rolling_from = os.rolling().begin,
                                                    .read_until = os.read_until(),
                                                    .zones = os.frame().Save(),
                                                    .recall_counts = os.recall_counts(),
                                                    .cooldown_until = os.cooldown_until()})) {
      const int64_t first = placement.page.span.begin + placement.first_token;
      for (int32_t i = 0; i < placement.tokens; ++i) {
        ASSERT_TRUE(its_host.at_position.emplace(placement.position + i, first + i).second);
      }
    }
    if (!CopiesOf(again.frame()).empty()) its_host.anchors = host.anchors;
    its_host.chosen = host.chosen;
    for (const int64_t token : KeptOf(again).Held()) {
      ASSERT_TRUE(host.kept.contains(token)) << "nothing has its keys";
      its_host.kept.insert(token);
    }
    its_host.opened = again.evicted();
    os = std::move(again);
    host = std::move(its_host);
    CheckInvariants(os, host);
  };

  for (int at = 0; at < 300; ++at) {
    step(os, host);
    if (below(12) == 0) {  // branches nest
      MemoryOs branch = os.Branch();
      ModelHost its_host = host;
      for (int i = 0; i < 6; ++i) step(branch, its_host);
      MemoryOs within = branch.Branch();
      for (int i = 0; i < 6; ++i) step(within, its_host);
      os.TakeTrace(branch);
      CheckInvariants(os, host);
    }
    if (below(25) == 0) reopen();
    if (HasFatalFailure()) FAIL() << "step " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomWalk, testing::Range<uint64_t>(1, 101));

TEST(MemoryOsTest, NothingThatCameBackProtectsNothing) {
  MemoryOsConfig config = SmallConfig();
  config.recall.signal = true;
  config.recall.protect_tokens = 100;
  MemoryOs os(config);
  for (int i = 0; i < 5; ++i) os.Observe(32, Origin::kRead);
  EXPECT_TRUE(Recall(os, {}).empty());
  EXPECT_EQ(Only<RecallAction>(os.Raise(Signal::kRetrieve)).size(), 1U);
  EXPECT_FALSE(Recall(os, PagesOf(0, 40)).empty());
  EXPECT_TRUE(Only<RecallAction>(os.Raise(Signal::kRetrieve)).empty()) << "what came back stays a while";
}

TEST(MemoryOsTest, SinksThatAreGoneAreNoBlocksSinks) {
  MemoryOs os(SmallConfig());
  const std::vector<PageRef> pages{{2, 0, 0, {2, 4}}};  // the first block, of two tokens, was forgotten
  os.Resume({.stream_end = 4, .pages = pages});
  ASSERT_EQ(os.sinks(), 0);
  const auto archives = Only<ArchiveAction>(os.Observe(40, Origin::kRead));
  ASSERT_FALSE(archives.empty());
  EXPECT_EQ(archives[0].sink_tokens, 0);
}

}  // namespace
}  // namespace everlong::os
