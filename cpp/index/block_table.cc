#include "everlong/index/block_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "block_filter.h"
#include "everlong/base/check.h"
#include "everlong/base/first_not.h"

namespace everlong::index {
int32_t BlockTable::Names::Number(std::string_view name) {
  const auto [at, is_new] = numbers.try_emplace(std::string(name), static_cast<int32_t>(names.size()));
  if (is_new) {
    constexpr size_t kNodeBytes = 64;  // of `numbers`, as it is allocated
    names.push_back(&at->first);
    postings.emplace_back();
    bytes +=
        static_cast<int64_t>(kNodeBytes + sizeof(std::string*) + sizeof(std::vector<int32_t>) + at->first.capacity());
  }
  return at->second;
}

int32_t BlockTable::Names::Find(const std::string& name) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? -1 : found->second;
}

void BlockTable::Names::Put(int32_t name, int32_t number) {
  std::vector<int32_t>& of_name = postings[static_cast<size_t>(name)];
  const auto at = std::ranges::lower_bound(of_name, number);
  if (at != of_name.end() && *at == number) return;
  const size_t before = of_name.capacity();
  of_name.insert(at, number);
  bytes += static_cast<int64_t>((of_name.capacity() - before) * sizeof(int32_t));
}

BlockTable::BlockTable(int32_t page_tokens) : page_tokens_(page_tokens) { EVERLONG_CHECK(page_tokens >= 1); }

int32_t BlockTable::Append(const NewBlock& block) {
  EVERLONG_CHECK(!block.span.empty() && (blocks_.empty() || block.id > blocks_.back().id));
  const int32_t number = blocks_.size();
  const int64_t tokens = block.span.size();
  const int64_t page_count = (tokens + page_tokens_ - 1) / page_tokens_;
  EVERLONG_CHECK(page_count <= INT32_MAX - pages());
  BlockEntry entry;
  entry.id = block.id;
  entry.stream = block.stream;
  entry.span = block.span;
  entry.created_at = block.created_at;
  entry.sink_tokens = static_cast<int32_t>(std::clamp<int64_t>(block.sink_tokens, 0, tokens));
  entry.source = sources_.Number(block.source);
  entry.first_tag = tags_of_blocks_.size();
  entry.tag_count = static_cast<int32_t>(block.tags.size());
  entry.first_page = pages();
  entry.page_count = static_cast<int32_t>(page_count);
  entry.role = block.role;
  entry.token_crc = block.token_crc;
  entry.happened = block.happened.value_or(block.created_at);
  sources_.Put(entry.source, number);
  OfRole& of_role = roles_[static_cast<size_t>(entry.role)];
  of_role.postings.push_back(number);
  for (const std::string& tag : block.tags) {
    const int32_t name = tags_.Number(tag);
    tags_.Put(name, number);
    tags_of_blocks_.push_back(name);
  }
  blocks_.push_back(entry);
  streams_[entry.stream].insert_or_assign(entry.span.begin, number);
  if (!std::isnan(entry.created_at)) by_time_.emplace_hint(by_time_.end(), entry.created_at, number);
  if (const PageRun pages = entry.ScoredPages(page_tokens_); pages.size() > 0) {
    std::map<int32_t, int32_t>& scored = of_role.scored;
    if (!scored.empty() && scored.rbegin()->second == pages.first) {
      scored.rbegin()->second = pages.last;
    } else {
      scored.emplace_hint(scored.end(), pages.first, pages.last);
    }
  }
  ++live_blocks_;
  live_pages_ += entry.page_count;
  return number;
}

int32_t BlockTable::NumberBehind(int64_t id) const {
  return FirstNot(blocks_.size(), [&](int32_t at) { return blocks_[at].id <= id; });
}

int32_t BlockTable::NumberOf(int64_t id) const {
  const int32_t number = NumberBehind(id) - 1;  // no two blocks have one id
  return number < 0 || blocks_[number].id != id || blocks_[number].forgotten ? -1 : number;
}

const BlockEntry* BlockTable::Find(int64_t id) const {
  const int32_t number = NumberOf(id);
  return number < 0 ? nullptr : &blocks_[number];
}

void BlockTable::SetTags(int64_t id, std::span<const std::string> tags, std::optional<double> happened) {
  const int32_t number = NumberOf(id);
  if (number < 0) return;
  BlockEntry& entry = blocks_[number];
  entry.happened = happened.value_or(entry.created_at);
  std::vector<int32_t> names;
  for (const std::string& tag : tags) {
    const int32_t name = tags_.Number(tag);
    if (std::ranges::find(names, name) != names.end()) continue;
    names.push_back(name);
    tags_.Put(name, number);
  }
  // A block's tags lie in a row, so all of them are written again behind those of all blocks.
  entry.first_tag = tags_of_blocks_.size();
  entry.tag_count = static_cast<int32_t>(names.size());
  for (const int32_t name : names) tags_of_blocks_.push_back(name);
}

void BlockTable::Forget(int64_t id) {
  const int32_t number = NumberOf(id);
  if (number < 0) return;
  BlockEntry& entry = blocks_[number];
  entry.forgotten = true;
  const auto stream = streams_.find(entry.stream);
  if (const auto at = stream->second.find(entry.span.begin); at != stream->second.end() && at->second == number) {
    stream->second.erase(at);
    if (stream->second.empty()) streams_.erase(stream);
  }
  by_time_.erase({entry.created_at, number});
  if (const PageRun gone = entry.ScoredPages(page_tokens_); gone.size() > 0) {
    std::map<int32_t, int32_t>& scored = roles_[static_cast<size_t>(entry.role)].scored;
    const auto run = std::prev(scored.upper_bound(gone.first));
    const auto [first, last] = *run;
    if (gone.first == first) {
      scored.erase(run);
    } else {
      run->second = gone.first;
    }
    if (gone.last < last) scored.emplace(gone.last, last);
  }
  --live_blocks_;
  live_pages_ -= entry.page_count;
}

std::vector<int32_t> BlockTable::LiveOrdinals(BlockRun blocks) const {
  std::vector<int32_t> ordinals;
  for (int32_t number = blocks.first; number < blocks.last; ++number) {
    const BlockEntry& block = blocks_[number];
    if (block.forgotten) continue;
    for (int32_t page = block.first_page; page < block.pages().last; ++page) ordinals.push_back(page);
  }
  return ordinals;
}

const BlockEntry& BlockTable::BlockOfPage(int32_t ordinal) const {
  EVERLONG_CHECK(ordinal >= 0 && ordinal < pages());
  const int32_t after = FirstNot(blocks_.size(), [&](int32_t number) { return blocks_[number].first_page <= ordinal; });
  return blocks_[after - 1];
}

PageEntry BlockTable::page(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  const int32_t page = ordinal - block.first_page;
  const int64_t begin = block.span.begin + int64_t{page} * page_tokens_;
  const int64_t tokens = block.span.size();
  return {block.id,
          page,
          block.stream,
          {begin, begin + PageTokens(tokens, page_tokens_, page)},
          PageSinks(tokens, block.sink_tokens, page_tokens_, page),
          block.source,
          block.forgotten};
}

std::vector<int32_t> BlockTable::tags(const BlockEntry& block) const {
  std::vector<int32_t> numbers;
  for (int32_t at = 0; at < block.tag_count; ++at) numbers.push_back(tags_of_blocks_[block.first_tag + at]);
  return numbers;
}

int64_t BlockTable::StreamEnd(int64_t stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? 0 : blocks_[found->second.rbegin()->second].span.end;
}

const BlockEntry* BlockTable::BlockAt(int64_t stream, int64_t position) const {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return nullptr;
  const auto after = found->second.upper_bound(position);
  if (after != found->second.begin()) {
    const BlockEntry& block = blocks_[std::prev(after)->second];
    if (block.span.end > position) return &block;
  }
  return after == found->second.end() ? nullptr : &blocks_[after->second];
}

std::vector<const BlockEntry*> BlockTable::RecentBlocks(int64_t stream, int64_t before, int32_t count,
                                                        const SearchFilter& filter) const {
  std::vector<const BlockEntry*> recent;
  const BlockFilter wanted(*this, filter);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return recent;
  for (auto at = std::make_reverse_iterator(found->second.lower_bound(before));
       at != found->second.rend() && std::ssize(recent) < count; ++at) {
    const BlockEntry& block = blocks_[at->second];
    if (block.span.end <= before && wanted.Passes(block)) recent.push_back(&block);
  }
  std::ranges::reverse(recent);
  return recent;
}

std::vector<int64_t> BlockTable::Passing(const SearchFilter& filter) const {
  return BlockFilter(*this, filter).Blocks();
}

int32_t BlockTable::PageAt(int64_t stream, int64_t token) const {
  const BlockEntry* const block = BlockAt(stream, token);
  if (block == nullptr || block->span.begin > token) return -1;
  return block->first_page + static_cast<int32_t>((token - block->span.begin) / page_tokens_);
}

int32_t BlockTable::Previous(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  if (ordinal > block.first_page && !block.forgotten) return ordinal - 1;
  const int64_t begin = block.span.begin + int64_t{ordinal - block.first_page} * page_tokens_;
  const int32_t before = PageAt(block.stream, begin - 1);
  if (before < 0) return -1;
  const PageEntry other = page(before);
  return other.span.end == begin && other.source == block.source ? before : -1;
}

int32_t BlockTable::Next(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  if (ordinal + 1 < block.pages().last && !block.forgotten) return ordinal + 1;
  const int64_t behind = block.span.begin + int64_t{ordinal - block.first_page + 1} * page_tokens_;
  const int64_t end = std::min(block.span.end, behind);
  const int32_t after = PageAt(block.stream, end);
  if (after < 0) return -1;
  const PageEntry other = page(after);
  return other.span.begin == end && other.source == block.source ? after : -1;
}

PageFilter BlockTable::Recallable(int64_t stream, int64_t resident_from, const SearchFilter& filter) const {
  const PageFilter pages = BlockFilter(*this, filter).Pages();
  const auto found = streams_.find(stream);
  if (pages.empty() || found == streams_.end()) return pages;
  std::vector<PageRun> resident;
  auto at = found->second.upper_bound(resident_from);
  if (at != found->second.begin()) --at;
  for (; at != found->second.end(); ++at) {
    const BlockEntry& block = blocks_[at->second];
    const int32_t first = FirstNot(block.page_count, [&](int32_t page) {
      const int32_t sinks = PageSinks(block.span.size(), block.sink_tokens, page_tokens_, page);
      return block.span.begin + int64_t{page} * page_tokens_ + sinks < resident_from;
    });
    resident.push_back({block.first_page + first, block.pages().last});
  }
  std::ranges::sort(resident, {}, &PageRun::first);
  return pages.Without(PageFilter(resident));
}

int64_t BlockTable::bytes() const {
  constexpr int64_t kNodeBytes = 64;  // of streams_, by_time_ and the runs of roles, as they are allocated
  int64_t bytes = blocks_.bytes() + tags_of_blocks_.bytes() + sources_.bytes + tags_.bytes +
                  kNodeBytes * (2 * int64_t{live_blocks_} + std::ssize(streams_));
  for (const OfRole& role : roles_) {
    bytes += static_cast<int64_t>(role.postings.capacity() * sizeof(int32_t)) + kNodeBytes * std::ssize(role.scored);
  }
  return bytes;
}

}  // namespace everlong::index
