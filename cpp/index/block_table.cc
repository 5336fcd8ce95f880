#include "everlong/index/block_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "everlong/base/check.h"

namespace everlong::index {
namespace {

// Return the first of 0 .. count - 1 that is not `before`, as all behind it; count if there is none.
template <class Before>
int32_t FirstNot(int32_t count, const Before& before) {
  int32_t first = 0;
  for (int32_t last = count; first < last;) {
    const int32_t middle = first + (last - first) / 2;
    if (before(middle)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

}  // namespace

int32_t BlockTable::Names::Number(std::string_view name) {
  const auto [at, is_new] = numbers.try_emplace(std::string(name), static_cast<int32_t>(names.size()));
  if (is_new) {
    names.push_back(&at->first);
    postings.emplace_back();
  }
  return at->second;
}

int32_t BlockTable::Names::Find(const std::string& name) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? -1 : found->second;
}

int64_t BlockTable::Names::bytes() const {
  constexpr size_t kNodeBytes = 64;  // of `numbers`, as it is allocated
  size_t bytes = names.size() * (kNodeBytes + sizeof(std::string*) + sizeof(std::vector<int32_t>));
  for (const std::string* name : names) bytes += name->capacity();
  for (const std::vector<int32_t>& of_name : postings) bytes += of_name.capacity() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
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
  sources_.postings[static_cast<size_t>(entry.source)].push_back(number);
  of(entry.role).postings.push_back(number);
  for (const std::string& tag : block.tags) {
    const int32_t name = tags_.Number(tag);
    std::vector<int32_t>& postings = tags_.postings[static_cast<size_t>(name)];
    if (postings.empty() || postings.back() != number) postings.push_back(number);
    tags_of_blocks_.push_back(name);
  }
  blocks_.push_back(entry);
  streams_[entry.stream].insert_or_assign(entry.span.begin, number);
  if (!std::isnan(entry.created_at)) by_time_.emplace_hint(by_time_.end(), entry.created_at, number);
  if (const PageRun pages = ScoredPages(entry); pages.size() > 0) {
    std::map<int32_t, int32_t>& scored = of(entry.role).scored;
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

int32_t BlockTable::NumberOf(int64_t id) const {
  const int32_t number = FirstNot(blocks_.size(), [&](int32_t at) { return blocks_[at].id < id; });
  return number == blocks_.size() || blocks_[number].id != id || blocks_[number].forgotten ? -1 : number;
}

int32_t BlockTable::NumberBehind(int64_t id) const {
  return FirstNot(blocks_.size(), [&](int32_t at) { return blocks_[at].id <= id; });
}

const BlockEntry* BlockTable::Find(int64_t id) const {
  const int32_t number = NumberOf(id);
  return number < 0 ? nullptr : &blocks_[number];
}

void BlockTable::AddTags(int64_t id, std::span<const std::string> tags) {
  const int32_t number = NumberOf(id);
  if (number < 0) return;
  BlockEntry& entry = blocks_[number];
  std::vector<int32_t> names = this->tags(entry);
  for (const std::string& tag : tags) {
    const int32_t name = tags_.Number(tag);
    if (std::ranges::find(names, name) != names.end()) continue;
    names.push_back(name);
    std::vector<int32_t>& postings = tags_.postings[static_cast<size_t>(name)];
    postings.insert(std::ranges::lower_bound(postings, number), number);
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
  if (const PageRun gone = ScoredPages(entry); gone.size() > 0) {
    std::map<int32_t, int32_t>& scored = of(entry.role).scored;
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

std::vector<int32_t> BlockTable::LiveOrdinals() const {
  std::vector<int32_t> ordinals;
  ordinals.reserve(static_cast<size_t>(live_pages_));
  for (int32_t number = 0; number < blocks_.size(); ++number) {
    const BlockEntry& block = blocks_[number];
    if (block.forgotten) continue;
    for (int32_t page = block.first_page; page < block.pages().last; ++page) ordinals.push_back(page);
  }
  return ordinals;
}

const BlockEntry& BlockTable::BlockOfPage(int32_t ordinal) const {
  EVERLONG_CHECK(ordinal >= 0 && ordinal < pages());
  return blocks_[FirstNot(blocks_.size(), [&](int32_t number) { return blocks_[number].first_page <= ordinal; }) - 1];
}

int32_t BlockTable::PageTokens(const BlockEntry& block, int32_t page) const {
  return static_cast<int32_t>(std::min<int64_t>(page_tokens_, block.span.size() - int64_t{page} * page_tokens_));
}

int32_t BlockTable::PageSinks(const BlockEntry& block, int32_t page) const {
  return static_cast<int32_t>(
      std::clamp<int64_t>(block.sink_tokens - int64_t{page} * page_tokens_, 0, PageTokens(block, page)));
}

PageEntry BlockTable::page(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  const int32_t page = ordinal - block.first_page;
  const int64_t begin = block.span.begin + int64_t{page} * page_tokens_;
  return {block.id,     page,           block.stream, {begin, begin + PageTokens(block, page)}, PageSinks(block, page),
          block.source, block.forgotten};
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
  const Wanted wanted = Resolve(filter);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || wanted.nothing) return recent;
  for (auto at = std::make_reverse_iterator(found->second.lower_bound(before));
       at != found->second.rend() && std::ssize(recent) < count; ++at) {
    const BlockEntry& block = blocks_[at->second];
    if (block.span.end <= before && Passes(block, wanted)) recent.push_back(&block);
  }
  std::ranges::reverse(recent);
  return recent;
}

int32_t BlockTable::PageThatBegins(int64_t stream, int64_t token) const {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return -1;
  const auto after = found->second.upper_bound(token);
  if (after == found->second.begin()) return -1;
  const BlockEntry& block = blocks_[std::prev(after)->second];
  const int64_t into = token - block.span.begin;
  return token < block.span.end && into % page_tokens_ == 0
             ? block.first_page + static_cast<int32_t>(into / page_tokens_)
             : -1;
}

int32_t BlockTable::PageThatEnds(int64_t stream, int64_t token) const {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return -1;
  const auto after = found->second.lower_bound(token);
  if (after == found->second.begin()) return -1;
  const BlockEntry& block = blocks_[std::prev(after)->second];
  if (token == block.span.end) return block.pages().last - 1;
  const int64_t into = token - block.span.begin;
  return token < block.span.end && into % page_tokens_ == 0
             ? block.first_page + static_cast<int32_t>(into / page_tokens_) - 1
             : -1;
}

int32_t BlockTable::Previous(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  if (ordinal > block.first_page && !block.forgotten) return ordinal - 1;
  const int32_t before =
      PageThatEnds(block.stream, block.span.begin + int64_t{ordinal - block.first_page} * page_tokens_);
  return before >= 0 && BlockOfPage(before).source == block.source ? before : -1;
}

int32_t BlockTable::Next(int32_t ordinal) const {
  const BlockEntry& block = BlockOfPage(ordinal);
  if (ordinal + 1 < block.pages().last && !block.forgotten) return ordinal + 1;
  const int64_t begin = block.span.begin + int64_t{ordinal - block.first_page} * page_tokens_;
  const int32_t after = PageThatBegins(block.stream, begin + PageTokens(block, ordinal - block.first_page));
  return after >= 0 && BlockOfPage(after).source == block.source ? after : -1;
}

BlockTable::Wanted BlockTable::Resolve(const SearchFilter& filter) const {
  Wanted wanted;
  wanted.since = filter.since;
  wanted.before = filter.before;
  wanted.any_source = filter.sources.empty();
  wanted.roles = filter.roles.value_or(Roles{Role::kRead, Role::kSaid});
  const auto distinct = [](std::vector<int32_t>& numbers) {
    std::ranges::sort(numbers);
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  };
  for (const std::string& name : filter.sources) {
    if (const int32_t number = sources_.Find(name); number >= 0) wanted.sources.push_back(number);
  }
  wanted.nothing = !wanted.any_source && wanted.sources.empty();
  for (const std::string& name : filter.tags) {
    const int32_t number = tags_.Find(name);
    wanted.nothing = wanted.nothing || number < 0;
    wanted.tags.push_back(number);
  }
  distinct(wanted.sources);
  distinct(wanted.tags);
  return wanted;
}

bool BlockTable::Passes(const BlockEntry& block, const Wanted& wanted) const {
  if (!wanted.roles.Has(block.role)) return false;
  if (!wanted.any_source && !std::ranges::binary_search(wanted.sources, block.source)) return false;
  if ((wanted.since && !(block.created_at >= *wanted.since)) ||
      (wanted.before && !(block.created_at < *wanted.before))) {
    return false;
  }
  return std::ranges::all_of(wanted.tags, [&](int32_t tag) {
    for (int32_t at = 0; at < block.tag_count; ++at) {
      if (tags_of_blocks_[block.first_tag + at] == tag) return true;
    }
    return false;
  });
}

std::optional<std::vector<int32_t>> BlockTable::InTime(const Wanted& wanted, size_t most) const {
  std::vector<int32_t> numbers;
  const auto first = wanted.since ? by_time_.lower_bound({*wanted.since, -1}) : by_time_.begin();
  const auto last = wanted.before ? by_time_.lower_bound({*wanted.before, -1}) : by_time_.end();
  if (wanted.since && wanted.before && !(*wanted.since < *wanted.before)) return numbers;
  for (auto at = first; at != last; ++at) {
    if (numbers.size() == most) return std::nullopt;
    numbers.push_back(at->second);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<int32_t> BlockTable::Candidates(const Wanted& wanted) const {
  size_t of_sources = 0;
  for (const int32_t source : wanted.sources) of_sources += sources_.postings[static_cast<size_t>(source)].size();
  const std::vector<int32_t>* of_tag = nullptr;
  for (const int32_t tag : wanted.tags) {
    const std::vector<int32_t>& postings = tags_.postings[static_cast<size_t>(tag)];
    if (of_tag == nullptr || postings.size() < of_tag->size()) of_tag = &postings;
  }
  auto fewest = static_cast<size_t>(blocks_.size());
  if (!wanted.any_source) fewest = std::min(fewest, of_sources);
  if (of_tag != nullptr) fewest = std::min(fewest, of_tag->size());
  const std::vector<int32_t>* of_role = nullptr;
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    if (wanted.roles == Roles{role} && of(role).postings.size() < fewest) of_role = &of(role).postings;
  }
  if (of_role != nullptr) fewest = of_role->size();
  if (wanted.since || wanted.before) {
    // A step in the order of time costs as much as looking at so many blocks in theirs.
    constexpr size_t kStep = 16;
    if (auto in_time = InTime(wanted, fewest / kStep + kStep)) return *std::move(in_time);
  }
  if (of_role != nullptr) return *of_role;
  if (of_tag != nullptr && of_tag->size() == fewest) return *of_tag;
  std::vector<int32_t> numbers;
  numbers.reserve(fewest);
  if (!wanted.any_source && of_sources == fewest) {
    for (const int32_t source : wanted.sources) {
      const auto middle = std::ssize(numbers);
      const std::vector<int32_t>& postings = sources_.postings[static_cast<size_t>(source)];
      numbers.insert(numbers.end(), postings.begin(), postings.end());
      std::ranges::inplace_merge(numbers, numbers.begin() + middle);
    }
    return numbers;
  }
  for (int32_t number = 0; number < blocks_.size(); ++number) numbers.push_back(number);
  return numbers;
}

PageRun BlockTable::ScoredPages(const BlockEntry& block) const {
  const int32_t only_sinks =
      block.sink_tokens >= block.span.size() ? block.page_count : block.sink_tokens / page_tokens_;
  return {block.first_page + only_sinks, block.pages().last};
}

PageFilter BlockTable::ResidentPages(int64_t stream, int64_t resident_from) const {
  std::vector<PageRun> runs;
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return {};
  auto at = found->second.upper_bound(resident_from);
  if (at != found->second.begin()) --at;
  for (; at != found->second.end(); ++at) {
    const BlockEntry& block = blocks_[at->second];
    const auto resident = [&](int32_t page) {
      return block.span.begin + int64_t{page} * page_tokens_ + PageSinks(block, page) >= resident_from;
    };
    const int32_t first = FirstNot(block.page_count, [&](int32_t page) { return !resident(page); });
    runs.push_back({block.first_page + first, block.pages().last});
  }
  std::ranges::sort(runs, {}, &PageRun::first);
  return PageFilter(runs);
}

PageFilter BlockTable::PagesOf(Roles roles) const {
  std::vector<PageRun> runs;
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    if (!roles.Has(role)) continue;
    const auto middle = std::ssize(runs);
    for (const auto& [first, last] : of(role).scored) runs.push_back({first, last});
    std::ranges::inplace_merge(runs, runs.begin() + middle, {}, &PageRun::first);
  }
  return PageFilter(runs);
}

PageFilter BlockTable::Recallable(int64_t stream, int64_t resident_from, const SearchFilter& filter) const {
  const Wanted wanted = Resolve(filter);
  PageFilter pages;
  if (wanted.any_block()) {
    pages = PagesOf(wanted.roles);
  } else if (!wanted.nothing) {
    for (const int32_t number : Candidates(wanted)) {
      const BlockEntry& block = blocks_[number];
      if (!block.forgotten && Passes(block, wanted)) pages.Add(ScoredPages(block));
    }
  }
  return pages.empty() ? pages : pages.Without(ResidentPages(stream, resident_from));
}

int64_t BlockTable::bytes() const {
  constexpr int64_t kNodeBytes = 64;  // of streams_, by_time_ and the runs of roles, as they are allocated
  int64_t bytes = blocks_.bytes() + tags_of_blocks_.bytes() + sources_.bytes() + tags_.bytes() +
                  kNodeBytes * (2 * int64_t{live_blocks_} + std::ssize(streams_));
  for (const OfRole& role : roles_) {
    bytes += static_cast<int64_t>(role.postings.capacity() * sizeof(int32_t)) + kNodeBytes * std::ssize(role.scored);
  }
  return bytes;
}

}  // namespace everlong::index
