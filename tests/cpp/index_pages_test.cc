#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "everlong/index/block_table.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/token_statistics.h"
#include "index_page_mask.h"

namespace everlong::index {
namespace {

TEST(BlockTable, NeighboursAreContiguousPagesOfOneStreamAndSource) {
  BlockTable table(64);
  const auto add = [&](int64_t id, int64_t stream, int64_t begin, int64_t end, const char* source) {
    const int32_t number =
        table.Append({.id = id, .stream = stream, .span = {begin, end}, .source = source, .tags = {}});
    return table.block(number).first_page;
  };
  EXPECT_EQ(add(1, 1, 0, 128, "a"), 0);    // pages 0 and 1
  EXPECT_EQ(add(2, 2, 128, 192, "a"), 2);  // another stream, between two blocks of the first
  EXPECT_EQ(add(3, 1, 128, 160, "a"), 3);  // goes on from 1
  EXPECT_EQ(add(4, 1, 160, 224, "b"), 4);  // another source
  EXPECT_EQ(add(5, 1, 300, 364, "b"), 5);  // after a hole
  EXPECT_EQ(table.pages(), 6);
  EXPECT_EQ(table.page(3).span, (TokenSpan{128, 160}));

  EXPECT_EQ(table.Previous(0), -1);
  EXPECT_EQ(table.Next(0), 1);
  EXPECT_EQ(table.Previous(1), 0);
  EXPECT_EQ(table.Next(1), 3);
  EXPECT_EQ(table.Previous(3), 1);
  EXPECT_EQ(table.Next(3), -1);
  EXPECT_EQ(table.Previous(4), -1);
  EXPECT_EQ(table.Next(4), -1);
  EXPECT_EQ(table.Previous(2), -1);
  EXPECT_EQ(table.Previous(5), -1);

  table.Forget(1);
  EXPECT_TRUE(table.page(0).forgotten);
  EXPECT_TRUE(table.page(1).forgotten);
  EXPECT_FALSE(table.page(3).forgotten);
  EXPECT_EQ(table.Previous(3), -1);
  EXPECT_EQ(table.Next(0), -1);
  table.Forget(77);

  // The same span once more, as when a forgotten book is read again.
  EXPECT_EQ(add(6, 1, 64, 128, "a"), 6);
  EXPECT_EQ(table.Previous(3), 6);
  EXPECT_EQ(table.Next(6), 3);
  table.Forget(1);
  EXPECT_EQ(table.Previous(3), 6);
}

TEST(BlockTable, ForgottenPagesAreNoNeighbours) {
  BlockTable table(64);
  for (int64_t block = 0; block < 3; ++block) {
    table.Append({.id = block, .stream = 1, .span = {block * 64, block * 64 + 64}, .source = {}, .tags = {}});
  }
  table.Forget(1);
  EXPECT_EQ(table.Next(0), -1);
  EXPECT_EQ(table.Previous(2), -1);
}

// What the table knows, as plainly as can be.
struct PlainBlock {
  int64_t id = 0;
  int64_t stream = 0;
  TokenSpan span;
  int32_t sinks = 0;
  double created_at = 0;
  std::string source;
  std::vector<std::string> tags;
  bool forgotten = false;
  Role role = Role::kRead;
  std::optional<double> happened;

  // Whether the last of its tags that begin as this one, up to "=", is this one.
  [[nodiscard]] bool HasNewest(const std::string& tag) const {
    const std::string kind = tag.substr(0, tag.find('=') == std::string::npos ? tag.size() : tag.find('=') + 1);
    for (size_t at = tags.size(); at > 0; --at) {
      if (tags[at - 1].starts_with(kind)) return tags[at - 1] == tag;
    }
    return false;
  }

  [[nodiscard]] bool Passes(const SearchFilter& filter) const {
    bool passes = filter.sources.empty() || std::ranges::count(filter.sources, source) > 0;
    for (const std::string& tag : filter.tags) passes = passes && std::ranges::count(tags, tag) > 0;
    passes = passes && (filter.roles ? filter.roles->Has(role) : role != Role::kAsked);
    if (filter.since) passes = passes && created_at >= *filter.since;
    if (filter.before) passes = passes && created_at < *filter.before;
    const double when = happened.value_or(created_at);
    if (filter.happened_since) passes = passes && when >= *filter.happened_since;
    if (filter.happened_before) passes = passes && when < *filter.happened_before;
    for (const std::string& tag : filter.newest_tags) passes = passes && HasNewest(tag);
    return passes;
  }
};

class PlainTable {
 public:
  static constexpr int32_t kPageTokens = 8;
  struct Page {
    size_t block = 0;
    int32_t page = 0;
    TokenSpan span;
    int32_t sinks = 0;
  };

  void Append(const PlainBlock& block) {
    for (int64_t begin = block.span.begin; begin < block.span.end; begin += kPageTokens) {
      const int64_t end = std::min(begin + kPageTokens, block.span.end);
      const auto sinks =
          static_cast<int32_t>(std::clamp<int64_t>(block.sinks - (begin - block.span.begin), 0, end - begin));
      pages.push_back(
          {blocks.size(), static_cast<int32_t>((begin - block.span.begin) / kPageTokens), {begin, end}, sinks});
    }
    blocks.push_back(block);
  }
  [[nodiscard]] const PlainBlock& BlockOf(const Page& page) const { return blocks[page.block]; }

  [[nodiscard]] int32_t Neighbour(const Page& page, bool next) const {
    for (size_t other = 0; other < pages.size(); ++other) {
      const PlainBlock& block = BlockOf(pages[other]);
      const bool adjacent = next ? pages[other].span.begin == page.span.end : pages[other].span.end == page.span.begin;
      if (adjacent && !block.forgotten && block.stream == BlockOf(page).stream &&
          block.source == BlockOf(page).source) {
        return static_cast<int32_t>(other);
      }
    }
    return -1;
  }

  [[nodiscard]] PageMask Recallable(int64_t stream, int64_t resident_from, const SearchFilter& filter) const {
    PageMask mask(static_cast<int32_t>(pages.size()), false);
    for (size_t at = 0; at < pages.size(); ++at) {
      const PlainBlock& block = BlockOf(pages[at]);
      const bool resident = block.stream == stream && pages[at].span.begin + pages[at].sinks >= resident_from;
      const bool only_sinks = pages[at].sinks >= pages[at].span.size();
      mask.Set(static_cast<int32_t>(at), !block.forgotten && block.Passes(filter) && !resident && !only_sinks);
    }
    return mask;
  }

  std::vector<PlainBlock> blocks;
  std::vector<Page> pages;
};

const std::vector<std::string> kNames{"", "a", "b", "c", "d"};
const std::vector<std::string> kKinds{"k=1", "k=2", "k=3", "other=1"};

SearchFilter RandomFilter(std::mt19937& random) {
  SearchFilter filter;
  for (size_t count = random() % 3; count > 0; --count) filter.sources.push_back(kNames[random() % 5]);
  for (size_t count = random() % 3; count > 0; --count) filter.tags.push_back(kNames[random() % 5]);
  if (random() % 3 == 0) filter.since = static_cast<double>(random() % 120);
  if (random() % 3 == 0) filter.before = static_cast<double>(random() % 120);
  if (random() % 4 == 0) filter.happened_since = static_cast<double>(random() % 120);
  if (random() % 4 == 0) filter.happened_before = static_cast<double>(random() % 120);
  if (random() % 4 == 0) filter.newest_tags.push_back(kKinds[random() % 4]);
  if (random() % 20 == 0) filter.sources.emplace_back("nowhere");
  if (random() % 2 == 0) {
    filter.roles = Roles{};
    for (size_t count = random() % 4; count > 0; --count) filter.roles->Add(static_cast<Role>(random() % kRoles));
  }
  if (random() % 40 == 0) filter.since = std::numeric_limits<double>::quiet_NaN();
  return filter;
}

// The table and the plain one, changed alike.
struct BothTables {
  explicit BothTables(uint32_t seed) : random(seed), in_time(seed % 2 == 0) {}

  void Append() {
    PlainBlock block;
    block.id = last_id += 1 + random() % 3;
    block.stream = static_cast<int64_t>(random() % 3);
    int64_t end = 0;
    for (const PlainBlock& other : plain.blocks) {
      if (other.stream == block.stream && !other.forgotten) end = std::max(end, other.span.end);
    }
    EXPECT_EQ(table.StreamEnd(block.stream), end);
    const int64_t begin = end + (random() % 5 == 0 ? 8 : 0);
    block.span = {begin, begin + 1 + static_cast<int64_t>(random() % 30)};
    block.sinks = random() % 3 == 0 ? static_cast<int32_t>(random() % static_cast<uint32_t>(block.span.size() + 1)) : 0;
    block.created_at = in_time ? static_cast<double>(plain.blocks.size()) : static_cast<double>(random() % 120);
    block.source = kNames[random() % 4];
    for (size_t count = random() % 4; count > 0; --count) block.tags.push_back(kNames[random() % 4]);
    for (size_t count = random() % 3; count > 0; --count) block.tags.push_back(kKinds[random() % 4]);
    block.role = static_cast<Role>(random() % kRoles);
    if (random() % 3 == 0) block.happened = static_cast<double>(random() % 120);
    const int32_t number = table.Append({.id = block.id,
                                         .stream = block.stream,
                                         .span = block.span,
                                         .sink_tokens = block.sinks,
                                         .created_at = block.created_at,
                                         .source = block.source,
                                         .tags = block.tags,
                                         .role = block.role,
                                         .happened = block.happened});
    EXPECT_EQ(number, std::ssize(plain.blocks));
    plain.Append(block);
  }

  void Forget() {
    PlainBlock& block = plain.blocks[random() % plain.blocks.size()];
    block.forgotten = true;
    table.Forget(block.id);
  }

  void SetTags() {
    PlainBlock& block = plain.blocks[random() % plain.blocks.size()];
    std::vector<std::string> more;
    for (size_t count = random() % 3; count > 0; --count) more.push_back(kNames[random() % 5]);
    for (size_t count = random() % 3; count > 0; --count) more.push_back(kKinds[random() % 4]);
    const std::optional<double> happened = random() % 2 == 0 ? std::nullopt : std::optional<double>(random() % 120);
    table.SetTags(block.id, more, happened);
    if (block.forgotten) return;
    block.happened = happened;
    block.tags.clear();
    for (const std::string& tag : more) {
      if (std::ranges::count(block.tags, tag) == 0) block.tags.push_back(tag);
    }
  }

  void ExpectTheSameRecallable() {
    const SearchFilter filter = RandomFilter(random);
    const auto stream = static_cast<int64_t>(random() % 4);
    const int64_t resident_from = random() % 3 == 0 ? INT64_MAX : static_cast<int64_t>(random() % 200);
    const PageMask expected = plain.Recallable(stream, resident_from, filter);
    const PageFilter pages = table.Recallable(stream, resident_from, filter);
    EXPECT_EQ(pages.runs().size(), PageFilter(expected).runs().size());
    EXPECT_TRUE(std::ranges::equal(pages.runs(), PageFilter(expected).runs()));
  }

  void ExpectTheSamePages() const {
    ASSERT_EQ(table.pages(), std::ssize(plain.pages));
    int32_t live_pages = 0;
    for (int32_t at = 0; at < table.pages(); ++at) {
      const PlainTable::Page& page = plain.pages[static_cast<size_t>(at)];
      const PlainBlock& block = plain.BlockOf(page);
      const PageEntry entry = table.page(at);
      EXPECT_EQ(entry.block, block.id);
      EXPECT_EQ(entry.page, page.page);
      EXPECT_EQ(entry.stream, block.stream);
      EXPECT_EQ(entry.span, page.span);
      EXPECT_EQ(entry.sink_tokens, page.sinks);
      EXPECT_EQ(table.source(entry.source), block.source);
      EXPECT_EQ(entry.forgotten, block.forgotten);
      EXPECT_EQ(table.Previous(at), plain.Neighbour(page, false)) << at;
      EXPECT_EQ(table.Next(at), plain.Neighbour(page, true)) << at;
      live_pages += block.forgotten ? 0 : 1;
    }
    EXPECT_EQ(table.live_pages(), live_pages);
  }

  void ExpectTheSameBlocks() const {
    int32_t live_blocks = 0;
    for (const PlainBlock& block : plain.blocks) {
      const BlockEntry* const found = table.Find(block.id);
      ASSERT_EQ(found == nullptr, block.forgotten);
      if (found == nullptr) continue;
      ++live_blocks;
      EXPECT_EQ(found->span, block.span);
      EXPECT_EQ(found->created_at, block.created_at);
      EXPECT_EQ(found->sink_tokens, block.sinks);
      EXPECT_EQ(found->role, block.role);
      std::vector<std::string> tags;
      for (const int32_t tag : table.tags(*found)) tags.push_back(table.tag(tag));
      EXPECT_EQ(tags, block.tags);
    }
    EXPECT_EQ(table.live_blocks(), live_blocks);
    EXPECT_EQ(table.Find(0), nullptr);
    EXPECT_EQ(table.Find(last_id + 1), nullptr);
  }

  void ExpectTheSameStreams() {
    for (int64_t stream = 0; stream < 4; ++stream) {
      for (int64_t position = 0; position < 220; position += 3) {
        const PlainBlock* at = nullptr;
        for (const PlainBlock& block : plain.blocks) {
          if (block.forgotten || block.stream != stream || block.span.end <= position) continue;
          if (at == nullptr || block.span.begin < at->span.begin) at = &block;
        }
        const BlockEntry* const found = table.BlockAt(stream, position);
        ASSERT_EQ(found == nullptr, at == nullptr);
        if (at != nullptr) {
          EXPECT_EQ(found->id, at->id);
        }

        const SearchFilter filter = RandomFilter(random);
        const auto count = static_cast<int32_t>(random() % 4);
        std::vector<int64_t> recent;
        for (auto block = plain.blocks.rbegin(); block != plain.blocks.rend() && std::ssize(recent) < count; ++block) {
          const bool is_there = !block->forgotten && block->stream == stream && block->span.end <= position;
          if (is_there && block->Passes(filter)) recent.insert(recent.begin(), block->id);
        }
        std::vector<int64_t> got;
        for (const BlockEntry* block : table.RecentBlocks(stream, position, count, filter)) got.push_back(block->id);
        EXPECT_EQ(got, recent);
      }
    }
  }

  std::mt19937 random;
  bool in_time;
  BlockTable table{PlainTable::kPageTokens};
  PlainTable plain;
  int64_t last_id = 0;
};

TEST(BlockTable, AgreesWithAPlainModelUnderRandomOperations) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    BothTables both(seed);
    for (int step = 0; step < 120; ++step) {
      if (both.random() % 4 != 0 || both.plain.blocks.empty()) {
        both.Append();
      } else {
        both.Forget();
      }
      if (both.random() % 3 == 0) both.SetTags();
      both.ExpectTheSameRecallable();
    }
    both.ExpectTheSamePages();
    both.ExpectTheSameBlocks();
    both.ExpectTheSameStreams();
    EXPECT_GT(both.table.bytes(), 0);
  }
}

TEST(PageFilter, AllowsOnlyWhatItHolds) {
  const PageFilter filter{{1, 2}};
  EXPECT_FALSE(filter.Allows(0));
  EXPECT_TRUE(filter.Allows(1));
  EXPECT_FALSE(filter.Allows(3));
  EXPECT_FALSE(filter.Allows(-1));
  EXPECT_FALSE(PageFilter().Allows(0));
}

TEST(PageFilter, RunsAgreeWithAByteAPage) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 400; ++trial) {
    const auto pages = static_cast<int32_t>(random() % 60);
    PageMask mask(pages, false);
    PageMask other(pages, false);
    const uint32_t density = 1 + static_cast<uint32_t>(random() % 6);
    int32_t count = 0;
    PageRun range;
    std::vector<int32_t> allowed;
    PageMask left(pages, false);
    for (int32_t page = 0; page < pages; ++page) {
      other.Set(page, random() % density == 0);
      if (random() % density != 0) continue;
      mask.Set(page, true);
      left.Set(page, !other.Allows(page));
      range = {count == 0 ? page : range.first, page + 1};
      ++count;
      allowed.push_back(page);
    }
    const PageFilter filter = mask;
    EXPECT_EQ(filter.Count(), count);
    EXPECT_EQ(filter.empty(), count == 0);
    EXPECT_EQ(filter.Range(), range);
    const PageFilter without = filter.Without(other);
    EXPECT_TRUE(std::ranges::equal(without.runs(), PageFilter(left).runs()));
    EXPECT_EQ(without.Count(), PageFilter(left).Count());
    for (int32_t page = -2; page < pages + 2; ++page) {
      EXPECT_EQ(filter.Allows(page), page >= 0 && mask.Allows(page));
      const PageRun run{std::max(page, 0), std::max(page, 0) + static_cast<int32_t>(random() % 5)};
      bool any = false;
      for (int32_t at = run.first; at < run.last; ++at) any = any || mask.Allows(at);
      EXPECT_EQ(filter.AllowsAny(run), any);
    }
    const PagePositions positions(filter);
    ASSERT_EQ(positions.size(), count);
    for (int32_t at = 0; at < count; ++at) EXPECT_EQ(positions[at], allowed[static_cast<size_t>(at)]);
    const auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(count + 1));
    std::vector<int32_t> visited;
    positions.ForEach(first, count, [&](int32_t position, int32_t page) {
      EXPECT_EQ(position, first + std::ssize(visited));
      visited.push_back(page);
    });
    EXPECT_TRUE(std::ranges::equal(visited, std::span(allowed).subspan(static_cast<size_t>(first))));
  }
}

TEST(TokenStatistics, IdfIsTheFormula) {
  std::mt19937 random(1);
  TokenStatistics statistics;
  EXPECT_EQ(statistics.Idf(std::vector<int32_t>{1, 2}), (std::vector<float>{0, 0}));
  std::vector<std::vector<int32_t>> pages(50);
  for (auto& page : pages) {
    page.resize(random() % 30);
    std::ranges::generate(page, [&] { return static_cast<int32_t>(random() % 40); });
    statistics.AddPage(page);
  }
  EXPECT_EQ(statistics.pages(), 50);
  std::vector<int32_t> ids(45);
  for (int32_t id = 0; id < 45; ++id) ids[static_cast<size_t>(id)] = id;
  const std::vector<float> idf = statistics.Idf(ids);
  for (const int32_t id : ids) {
    const auto holding = std::ranges::count_if(
        pages, [id](const auto& page) { return std::set<int32_t>(page.begin(), page.end()).contains(id); });
    EXPECT_EQ(statistics.DocumentFrequency(id), holding);
    const double expected = std::log(1 + 50.0 / static_cast<double>(std::max<int64_t>(1, holding)));
    EXPECT_NEAR(idf[static_cast<size_t>(id)], expected, 1e-6);
  }
}

TEST(TokenStatistics, ABlockCountsAsItsPages) {
  std::mt19937 random(2);
  TokenStatistics by_block;
  TokenStatistics by_page;
  std::vector<std::vector<int32_t>> blocks(20);
  for (auto& block : blocks) {
    block.resize(1 + random() % 30);
    std::ranges::generate(block, [&] { return static_cast<int32_t>(random() % 40); });
    by_block.AddBlock(block, 8);
    for (std::span<const int32_t> left = block; !left.empty(); left = left.subspan(std::min<size_t>(8, left.size()))) {
      by_page.AddPage(left.first(std::min<size_t>(8, left.size())));
    }
  }
  const auto expect_same = [&] {
    EXPECT_EQ(by_block.pages(), by_page.pages());
    for (int32_t id = 0; id < 41; ++id) EXPECT_EQ(by_block.DocumentFrequency(id), by_page.DocumentFrequency(id));
  };
  expect_same();
  for (const size_t gone : {3U, 11U}) {
    by_block.RemoveBlock(blocks[gone], 8);
    std::span<const int32_t> left = blocks[gone];
    for (; !left.empty(); left = left.subspan(std::min<size_t>(8, left.size()))) {
      by_page.RemovePage(left.first(std::min<size_t>(8, left.size())));
    }
    expect_same();
  }
  by_block.Clear();
  EXPECT_EQ(by_block.pages(), 0);
  EXPECT_EQ(by_block.DocumentFrequency(1), 0);
}

}  // namespace
}  // namespace everlong::index
