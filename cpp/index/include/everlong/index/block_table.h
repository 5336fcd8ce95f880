// The table of blocks and pages, in the order in which they were archived. It numbers them for every part of the index,
// and says which of them a search may return. Pages are computed from their block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "everlong/base/role.h"
#include "everlong/base/stable_vector.h"
#include "everlong/base/token_span.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// Which blocks a question may see. A field that is not set excludes nothing. All that reads blocks for a question takes
// it: searches, lists of pages, and os::Blocks::Infos.
struct SearchFilter {
  std::vector<std::string> sources;  // any of these
  std::vector<std::string> tags;     // all of these
  std::optional<double> since;       // archived at this time or later, seconds since 1970
  std::optional<double> before;      // archived before this time
  // Any of these. If not set: what was read and what was said, because a question is no evidence for its own answer.
  std::optional<Roles> roles;
  std::optional<double> happened_since;   // its events happened at this time or later (BlockEntry::happened)
  std::optional<double> happened_before;  // before this time
  // All of these, each the last of the block's tags that begin as it does, up to "=": a newer value replaces an older.
  std::vector<std::string> newest_tags;
};

// Return what tags begin with that a newer one replaces: up to "=", or all of it.
inline std::string_view KindOfTag(std::string_view tag) {
  const size_t end = tag.find('=');
  return end == tag.npos ? tag : tag.substr(0, end + 1);
}

// A block to add.
struct NewBlock {
  int64_t id = 0;
  int64_t stream = 0;
  TokenSpan span;           // of the stream; not empty
  int32_t sink_tokens = 0;  // its first tokens that are sinks; never scored, for sinks draw attention from any query
  double created_at = 0;    // seconds since 1970
  std::string_view source;
  std::span<const std::string> tags;
  Role role = Role::kRead;
  uint32_t token_crc = 0;                         // CRC-32C of its token ids
  std::optional<double> happened = std::nullopt;  // when its events did, where that was told
};

// Return how many tokens a page has of a block of `tokens`, in pages of `page_tokens`.
inline int32_t PageTokens(int64_t tokens, int32_t page_tokens, int32_t page) {
  return static_cast<int32_t>(std::min<int64_t>(page_tokens, tokens - int64_t{page} * page_tokens));
}
// Return how many of its first tokens are sinks, of a block's first `sinks`.
inline int32_t PageSinks(int64_t tokens, int64_t sinks, int32_t page_tokens, int32_t page) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(sinks - int64_t{page} * page_tokens, 0, PageTokens(tokens, page_tokens, page)));
}

struct BlockEntry {
  int64_t id = 0;
  int64_t stream = 0;
  TokenSpan span;
  double created_at = 0;
  int32_t sink_tokens = 0;  // 0 to all of its tokens
  int32_t source = 0;       // number for BlockTable::source
  int32_t first_tag = 0;    // place in BlockTable::tags
  int32_t tag_count = 0;
  int32_t first_page = 0;  // ordinal
  int32_t page_count = 0;
  bool forgotten = false;
  Role role = Role::kRead;
  uint32_t token_crc = 0;
  double happened = 0;  // when its events did, as it was told; else created_at

  [[nodiscard]] PageRun pages() const { return {first_page, first_page + page_count}; }
  // Return those that hold more than sinks.
  [[nodiscard]] PageRun ScoredPages(int32_t page_tokens) const {
    return {first_page + (sink_tokens >= span.size() ? page_count : sink_tokens / page_tokens), pages().last};
  }
};

// Blocks of a table by their numbers: [first, last).
struct BlockRun {
  int32_t first = 0;
  int32_t last = 0;
};

struct PageEntry {
  int64_t block = 0;
  int32_t page = 0;  // number within the block
  int64_t stream = 0;
  TokenSpan span;           // of the stream; not empty
  int32_t sink_tokens = 0;  // first tokens of this page that are sinks
  int32_t source = 0;       // number for BlockTable::source
  bool forgotten = false;
};

// Blocks are numbered 0, 1, 2 ... (`number`) in the order of Append. Their pages are numbered too (`ordinal`), one
// block's after the other's. Neither number ever changes. Appends, forgets and lookups take O(log blocks). Not
// thread-safe: os::Memory owns and locks it. A search sees what is in the table.
class BlockTable {
 public:
  explicit BlockTable(int32_t page_tokens);  // tokens of a full page; a block's last page may have fewer

  // Append a block and return its number. Its id must be larger than any before.
  int32_t Append(const NewBlock& block);
  // Forget a block. An unknown or forgotten block changes nothing.
  void Forget(int64_t id);
  // Give a block these tags, each once, in place of those it has, and this time of its events. An unknown or forgotten
  // block changes nothing.
  void SetTags(int64_t id, std::span<const std::string> tags, std::optional<double> happened);

  [[nodiscard]] int32_t page_tokens() const { return page_tokens_; }
  // Return the count, with the forgotten ones.
  [[nodiscard]] int32_t blocks() const { return blocks_.size(); }
  [[nodiscard]] int32_t pages() const { return blocks_.empty() ? 0 : blocks_.back().pages().last; }
  // Return the count, without the forgotten ones.
  [[nodiscard]] int32_t live_blocks() const { return live_blocks_; }
  [[nodiscard]] int32_t live_pages() const { return live_pages_; }
  [[nodiscard]] BlockRun All() const { return {0, blocks()}; }
  // Return the pages of these blocks that are not forgotten, ascending.
  [[nodiscard]] std::vector<int32_t> LiveOrdinals(BlockRun blocks) const;

  [[nodiscard]] const BlockEntry& block(int32_t number) const { return blocks_[number]; }
  // Return the number of the first block with a larger id; blocks() if there is none.
  [[nodiscard]] int32_t NumberBehind(int64_t id) const;
  // Return the block with this id; nullptr when it is unknown or forgotten.
  [[nodiscard]] const BlockEntry* Find(int64_t id) const;
  [[nodiscard]] const BlockEntry& BlockOfPage(int32_t ordinal) const;
  [[nodiscard]] PageEntry page(int32_t ordinal) const;
  [[nodiscard]] const std::string& source(int32_t number) const { return *sources_.names[static_cast<size_t>(number)]; }
  [[nodiscard]] const std::string& tag(int32_t number) const { return *tags_.names[static_cast<size_t>(number)]; }
  // Return the numbers of a block's tags, in the order in which they were given.
  [[nodiscard]] std::vector<int32_t> tags(const BlockEntry& block) const;

  // Return one past the newest token of a stream; 0 when it has none.
  [[nodiscard]] int64_t StreamEnd(int64_t stream) const;
  // Return the block of `stream` that holds token `position`, or else the first behind it; nullptr if there is none.
  [[nodiscard]] const BlockEntry* BlockAt(int64_t stream, int64_t position) const;
  // Return the `count` newest blocks of `stream` that end at or before `before` and pass `filter`, oldest first.
  [[nodiscard]] std::vector<const BlockEntry*> RecentBlocks(int64_t stream, int64_t before, int32_t count,
                                                            const SearchFilter& filter) const;
  // Return the ids of the blocks that pass, ascending.
  [[nodiscard]] std::vector<int64_t> Passing(const SearchFilter& filter) const;
  // Return the page before or after this one; -1 if there is none. It is contiguous in the same stream, of the same
  // source, and not forgotten. If two blocks of the stream qualify, it is the one added last.
  [[nodiscard]] int32_t Previous(int32_t ordinal) const;
  [[nodiscard]] int32_t Next(int32_t ordinal) const;

  // Return the pages that may be recalled into a frame of `stream` that holds every token from `resident_from`. Their
  // blocks pass `filter`. Pages that are forgotten, resident, or all sinks are excluded. A page may come back once a
  // part of it has left the frame. Sinks never leave.
  [[nodiscard]] PageFilter Recallable(int64_t stream, int64_t resident_from, const SearchFilter& filter = {}) const;

  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  // Names, each kept once, and the numbers of the blocks that have it: ascending, with the forgotten ones.
  struct Names {
    std::unordered_map<std::string, int32_t> numbers;
    std::vector<const std::string*> names;
    std::vector<std::vector<int32_t>> postings;
    int64_t bytes = 0;  // of all of these, about

    int32_t Number(std::string_view name);                      // of a known name, or of a new one
    [[nodiscard]] int32_t Find(const std::string& name) const;  // -1 if unknown
    void Put(int32_t name, int32_t number);                     // into its postings, once
  };
  // The blocks of a role, and its pages that are neither forgotten nor sinks, as runs first -> last.
  struct OfRole {
    std::vector<int32_t> postings;
    std::map<int32_t, int32_t> scored;
  };
  // It looks for blocks by their names, times and roles.
  friend class BlockFilter;

  // Return the number of a block that is not forgotten; -1 if there is none.
  [[nodiscard]] int32_t NumberOf(int64_t id) const;
  // Return the page of `stream` that holds a token; -1 if there is none.
  [[nodiscard]] int32_t PageAt(int64_t stream, int64_t token) const;

  using OfStream = std::map<int64_t, int32_t>;  // first token -> number, without the forgotten ones

  int32_t page_tokens_;
  StableVector<BlockEntry> blocks_;
  StableVector<int32_t> tags_of_blocks_;
  Names sources_;
  Names tags_;
  std::unordered_map<int64_t, OfStream> streams_;
  std::set<std::pair<double, int32_t>> by_time_;  // created_at and number, without the forgotten ones
  std::array<OfRole, kRoles> roles_;
  int32_t live_blocks_ = 0;
  int32_t live_pages_ = 0;
};

}  // namespace everlong::index
