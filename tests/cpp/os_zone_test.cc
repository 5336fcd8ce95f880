// A new zone and a new maker of offers, by their contracts alone: the Memory OS knows neither.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <ranges>
#include <string>
#include <vector>

#include "everlong/os/memory_os.h"
#include "everlong/os/zone.h"
#include "os_zones.h"

namespace everlong::os {
namespace {

using Spans = std::vector<TokenSpan>;

// Keeps the last token that nobody else wants of each span that leaves rolling, and lets go of the oldest.
class Milestones final : public Zone {
 public:
  explicit Milestones(int64_t budget) : budget_(budget) {}
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<Milestones>(*this); }
  [[nodiscard]] std::string_view name() const override { return "milestones"; }
  [[nodiscard]] int64_t budget() const override { return budget_; }
  [[nodiscard]] std::vector<int64_t> Slots() const override {
    std::vector<int64_t> slots(tokens_.size());
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }
  [[nodiscard]] bool HoldsCopies() const override { return true; }
  void Leave(TokenSpan leaving, std::span<const TokenSpan> others, Eviction& eviction) override {
    int64_t token = leaving.end - 1;
    for (const TokenSpan& span : others | std::views::reverse) {
      if (token >= span.begin && token < span.end) token = span.begin - 1;
    }
    if (token < leaving.begin) return;
    Keep keep{.span = {token, token + 1}};
    if (std::ssize(tokens_) == budget_) {
      keep.dropped = {tokens_.front(), tokens_.front() + 1};
      tokens_.erase(tokens_.begin());
      eviction.events.push_back({EventKind::kAnchorDropped, keep.dropped, 1});
    }
    tokens_.push_back(keep.span.begin);
    eviction.keeps.push_back(keep);
    eviction.events.push_back({EventKind::kAnchor, keep.span, 1});
  }
  [[nodiscard]] Spans Resident() const override {
    Spans spans;
    for (const int64_t token : tokens_) spans.push_back({token, token + 1});
    return spans;
  }
  void Restart(const Restorable& /*from*/) override { tokens_.clear(); }
  [[nodiscard]] ZoneRows Save() const override { return {tokens_}; }
  [[nodiscard]] Spans Named(const ZoneRows& rows) const override {
    Milestones other(budget_);
    if (!rows.empty()) other.tokens_ = rows[0];
    return other.Resident();
  }
  bool Open(const ZoneRows& rows, const Around& around) override {
    if (rows.size() != 1 || std::ssize(rows[0]) > budget_) return false;
    for (const int64_t token : rows[0]) {
      if (token < around.sinks || token >= around.rolling.begin) return false;
    }
    tokens_ = rows[0];
    return true;
  }
  [[nodiscard]] std::vector<ZoneEvent> Report() const override {
    std::vector<ZoneEvent> events;
    for (const TokenSpan& span : Resident()) events.push_back({EventKind::kAnchor, span, 1});
    return events;
  }

 private:
  int64_t budget_;
  std::vector<int64_t> tokens_;
};

MemoryOsConfig Config() {
  MemoryOsConfig config;
  config.residency = {.frame_tokens = 160,
                      .sink_tokens = 4,
                      .recalled_tokens = 24,
                      .rolling_tokens = 40,
                      .evict_tokens = 8,
                      .anchor_tokens = 2,
                      .anchors = 3,
                      .tombstones = 2,
                      .kept = {.tokens = 8, .share = 4, .rungs = 2}};
  config.segmenter.block_tokens = 16;
  return config;
}

// The zones of the config, and milestones before the one for what comes back.
ZoneList WithMilestones(int64_t budget) {
  ZoneList zones;
  for (const auto& zone : MakeZones(Config().residency)) {
    if (zone->RoomForOffers() > 0) zones.Add(std::make_unique<Milestones>(budget));
    zones.Add(zone->Copy());
  }
  return zones;
}

std::vector<PageRef> Pages(int64_t until) {
  std::vector<PageRef> pages;
  for (int64_t begin = 0; begin < until; begin += 8) {
    pages.push_back({1 + begin / 16, static_cast<int32_t>(begin / 8 % 2), 0, {begin, begin + 8}, begin == 0 ? 4 : 0});
  }
  return pages;
}

void Read(MemoryOs& os, int64_t tokens) {
  for (; tokens > 0; tokens -= 8) {
    os.Observe(8, Origin::kRead);
    while (os.choice_due() != nullptr) os.Choose(std::vector<int64_t>{os.choice_due()->from[0].begin});
  }
}

TEST(ZoneTest, ANewZoneTakesLetsGoAndStandsAmongTheOthers) {
  MemoryOs os(Config(), WithMilestones(3));
  const int64_t zones = 4 + 2 + 6 + 8 + 3 + 24;
  EXPECT_EQ(os.Room(), 160 - zones);
  Read(os, 56);  // the first 12 tokens behind the sinks leave
  ASSERT_TRUE(os.evicted());
  EXPECT_EQ(os.NextPosition() - os.rolling().size(), zones) << "rolling lies behind all zones";
  EXPECT_EQ(os.frame().zone("milestones").Save(), (ZoneRows{{os.rolling().begin - 1}}));
  EXPECT_EQ(os.frame().PositionOf("milestones"), 4 + 2 + 6 + 8);
  const std::vector<int64_t> copies = os.frame().CopyPositions();
  EXPECT_EQ(std::ranges::count(copies, 20), 1) << "its slot is among those that the host keeps copies of";
  Read(os, 64);
  const std::vector<int64_t> held = os.frame().zone("milestones").Save()[0];
  ASSERT_EQ(held.size(), 3U) << "the oldest were let go";
  EXPECT_EQ(held.back(), os.rolling().begin - 1);

  // A recall brings pages around what the zone holds, as around anchors.
  const TokenSpan span{held[0] - 3, held[0] + 3};
  for (const TokenSpan& run : os.frame().Outside(span)) EXPECT_FALSE(run.Overlaps({held[0], held[0] + 1}));
  // A copy of the Memory OS has a zone of its own.
  MemoryOs branch = os.Branch();
  branch.Observe(60, Origin::kGenerated);
  EXPECT_NE(branch.frame().zone("milestones").Save(), os.frame().zone("milestones").Save());
  EXPECT_EQ(os.frame().zone("milestones").Save(), ZoneRows{held});
}

TEST(ZoneTest, ANewZoneIsSavedAndOpenedWithTheOthers) {
  MemoryOs os(Config(), WithMilestones(3));
  Read(os, 128);
  const SavedZones saved = os.frame().Save();
  ASSERT_TRUE(saved.contains("milestones"));
  const ResumeState state{.stream_end = 128, .pages = Pages(128), .rolling_from = os.rolling().begin, .zones = saved};
  MemoryOs again(Config(), WithMilestones(3));
  again.Resume(state);
  EXPECT_EQ(again.frame().zone("milestones").Save(), saved.at("milestones"));
  EXPECT_EQ(CopiesOf(again.frame()).tombstones, CopiesOf(os.frame()).tombstones);
  EXPECT_EQ(again.frame().CopyPositions(), os.frame().CopyPositions());
  EXPECT_EQ(KeptOf(again).Held(), KeptOf(os).Held());
  const auto told = std::ranges::count(again.trace(), EventKind::kAnchor, &Event::what);
  EXPECT_EQ(told, std::ssize(CopiesOf(os.frame()).anchors) + 3) << "the trace says what was taken over";

  // What it cannot have is refused, and then no zone whose copies the host keeps is taken over.
  ResumeState wrong = state;
  wrong.zones["milestones"] = {{os.rolling().begin}};
  again.Resume(wrong);
  EXPECT_TRUE(again.frame().zone("milestones").Save()[0].empty());
  EXPECT_TRUE(CopiesOf(again.frame()).empty());
  EXPECT_EQ(KeptOf(again).Held(), KeptOf(os).Held()) << "this one's tokens are read again";
  // The same where its text is archived no longer.
  ResumeState forgotten = state;
  const int64_t milestone = saved.at("milestones")[0][0];
  std::erase_if(forgotten.pages, [&](const PageRef& page) { return page.span.Overlaps({milestone, milestone + 1}); });
  again.Resume(forgotten);
  EXPECT_TRUE(again.frame().zone("milestones").Save()[0].empty());
}

// However the stream goes on: every token is in the frame at most once, and slots lie within budgets.
TEST(ZoneTest, ANewZoneKeepsTheFrameWhole) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    MemoryOs os(Config(), WithMilestones(1 + below(5)));
    for (int step = 0; step < 60; ++step) {
      os.Observe(1 + below(std::min<int64_t>(os.Room(), 12)), below(3) == 0 ? Origin::kGenerated : Origin::kRead);
      while (os.choice_due() != nullptr) os.Choose(std::vector<int64_t>{os.choice_due()->from[0].begin});
      Spans resident{os.rolling()};
      int64_t first = 0;
      for (const auto& zone : os.frame().zones()) {
        for (const TokenSpan& span : zone->Resident()) resident.push_back(span);
        for (const int64_t token : zone->Shown()) resident.push_back({token, token + 1});
        const std::vector<int64_t> slots = zone->Slots();
        ASSERT_TRUE(std::ranges::is_sorted(slots));
        ASSERT_TRUE(slots.empty() || (slots.front() >= 0 && slots.back() < zone->budget())) << zone->name();
        first += zone->budget();
      }
      ASSERT_EQ(os.frame().rolling_position(), os.evicted() ? first : os.sinks());
      std::ranges::sort(resident, {}, &TokenSpan::begin);
      std::erase_if(resident, [](const TokenSpan& span) { return span.empty(); });
      for (size_t i = 1; i < resident.size(); ++i) {
        ASSERT_LE(resident[i - 1].end, resident[i].begin) << "seed " << seed << " step " << step;
      }
    }
  }
}

// A new maker of offers: it knows pages that went with the question once, and how often that helped.
std::vector<Offer> Habits(const std::vector<PageRef>& pages) {
  std::vector<Offer> offers;
  for (const PageRef& page : pages) offers.push_back({.page = page, .by = "habit", .sure = 0.25F});
  return offers;
}

TEST(OfferTest, ANewMakersOffersArePlacedAmongOthersAndSayWhy) {
  MemoryOs os(Config());
  Read(os, 128);
  const std::vector<PageRef> pages = Pages(128);
  std::vector<Offer> offers = Habits({pages[3], pages[5]});
  offers.push_back({.page = pages[2], .by = "search", .sure = 0.75F});
  offers.push_back({.kind = OfferKind::kDetails, .page = {4, 0, 0, {48, 64}}, .slots = 6, .by = "writer"});
  offers.push_back({.page = pages[3], .by = "search"});  // again, and this mention counts
  const std::vector<Placement> placements = os.Recall(offers);

  ASSERT_FALSE(placements.empty());
  EXPECT_TRUE(placements[0].details) << "before the pages, whoever offered first";
  int64_t next = os.frame().rolling_position();
  for (size_t i = placements.size(); i-- > 0; next -= placements[i].tokens) {
    EXPECT_EQ(placements[i].position, next - placements[i].tokens) << "without gaps, right before rolling";
  }
  EXPECT_EQ(placements.back().page, pages[3]);
  const auto restore = std::ranges::find(os.trace(), EventKind::kRestore, &Event::what);
  ASSERT_NE(restore, os.trace().end());
  std::vector<std::string> by;
  for (const RestoredRun& run : restore->restored) by.push_back(run.by);
  EXPECT_EQ(by, (std::vector<std::string>{"writer", "habit", "search"})) << "two of one block are one run";
  EXPECT_EQ(restore->restored[1].span.end, 48);
  EXPECT_EQ(restore->restored[1].sure, 0.25F);
}

}  // namespace
}  // namespace everlong::os
