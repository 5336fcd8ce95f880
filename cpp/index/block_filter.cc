#include "block_filter.h"

#include <algorithm>

namespace everlong::index {

BlockFilter::BlockFilter(const BlockTable& table, const SearchFilter& filter)
    : table_(table),
      any_source_(filter.sources.empty()),
      since_(filter.since),
      before_(filter.before),
      happened_since_(filter.happened_since),
      happened_before_(filter.happened_before),
      roles_(filter.roles.value_or(Roles{Role::kRead, Role::kSaid})) {
  const auto distinct = [](std::vector<int32_t>& numbers) {
    std::ranges::sort(numbers);
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  };
  for (const std::string& name : filter.sources) {
    if (const int32_t number = table_.sources_.Find(name); number >= 0) sources_.push_back(number);
  }
  nothing_ = !any_source_ && sources_.empty();
  for (const std::string& name : filter.tags) {
    const int32_t number = table_.tags_.Find(name);
    nothing_ = nothing_ || number < 0;
    tags_.push_back(number);
  }
  for (const std::string& name : filter.newest_tags) {
    const int32_t number = table_.tags_.Find(name);
    nothing_ = nothing_ || number < 0;
    tags_.push_back(number);
    newest_.push_back(number);
  }
  distinct(sources_);
  distinct(tags_);
}

bool BlockFilter::Passes(const BlockEntry& block) const {
  if (nothing_ || !roles_.Has(block.role)) return false;
  if (!any_source_ && !std::ranges::binary_search(sources_, block.source)) return false;
  if ((since_ && !(block.created_at >= *since_)) || (before_ && !(block.created_at < *before_))) {
    return false;
  }
  if ((happened_since_ && !(block.happened >= *happened_since_)) ||
      (happened_before_ && !(block.happened < *happened_before_))) {
    return false;
  }
  const auto tag_at = [&](int32_t at) { return table_.tags_of_blocks_[block.first_tag + at]; };
  const auto has = [&](int32_t tag) {
    for (int32_t at = 0; at < block.tag_count; ++at) {
      if (tag_at(at) == tag) return true;
    }
    return false;
  };
  const auto is_newest = [&](int32_t tag) {
    int32_t at = block.tag_count - 1;
    while (at >= 0 && !table_.tag(tag_at(at)).starts_with(KindOfTag(table_.tag(tag)))) --at;
    return at >= 0 && tag_at(at) == tag;
  };
  return std::ranges::all_of(tags_, has) && std::ranges::all_of(newest_, is_newest);
}

std::optional<std::vector<int32_t>> BlockFilter::InTime(size_t most) const {
  std::vector<int32_t> numbers;
  const auto first = since_ ? table_.by_time_.lower_bound({*since_, -1}) : table_.by_time_.begin();
  const auto last = before_ ? table_.by_time_.lower_bound({*before_, -1}) : table_.by_time_.end();
  if (since_ && before_ && !(*since_ < *before_)) return numbers;
  for (auto at = first; at != last; ++at) {
    if (numbers.size() == most) return std::nullopt;
    numbers.push_back(at->second);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<int32_t> BlockFilter::Candidates() const {
  size_t of_sources = 0;
  for (const int32_t source : sources_) of_sources += table_.sources_.postings[static_cast<size_t>(source)].size();
  const std::vector<int32_t>* of_tag = nullptr;
  for (const int32_t tag : tags_) {
    const std::vector<int32_t>& postings = table_.tags_.postings[static_cast<size_t>(tag)];
    if (of_tag == nullptr || postings.size() < of_tag->size()) of_tag = &postings;
  }
  auto fewest = static_cast<size_t>(table_.blocks_.size());
  if (!any_source_) fewest = std::min(fewest, of_sources);
  if (of_tag != nullptr) fewest = std::min(fewest, of_tag->size());
  const std::vector<int32_t>* of_role = nullptr;
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    if (roles_ == Roles{role} && OfRole(role).postings.size() < fewest) of_role = &OfRole(role).postings;
  }
  if (of_role != nullptr) fewest = of_role->size();
  if (since_ || before_) {
    // A step in the order of time costs as much as looking at so many blocks in theirs.
    constexpr size_t kStep = 16;
    if (auto in_time = InTime(fewest / kStep + kStep)) return *std::move(in_time);
  }
  if (of_role != nullptr) return *of_role;
  if (of_tag != nullptr && of_tag->size() == fewest) return *of_tag;
  std::vector<int32_t> numbers;
  numbers.reserve(fewest);
  if (!any_source_ && of_sources == fewest) {
    for (const int32_t source : sources_) {
      const auto middle = std::ssize(numbers);
      const std::vector<int32_t>& postings = table_.sources_.postings[static_cast<size_t>(source)];
      numbers.insert(numbers.end(), postings.begin(), postings.end());
      std::ranges::inplace_merge(numbers, numbers.begin() + middle);
    }
    return numbers;
  }
  for (int32_t number = 0; number < table_.blocks_.size(); ++number) numbers.push_back(number);
  return numbers;
}

PageFilter BlockFilter::PagesOfRoles() const {
  std::vector<PageRun> runs;
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    if (!roles_.Has(role)) continue;
    const auto middle = std::ssize(runs);
    for (const auto& [first, last] : OfRole(role).scored) runs.push_back({first, last});
    std::ranges::inplace_merge(runs, runs.begin() + middle, {}, &PageRun::first);
  }
  return PageFilter(runs);
}

std::vector<int64_t> BlockFilter::Blocks() const {
  std::vector<int64_t> ids;
  if (nothing_) return ids;
  for (const int32_t number : Candidates()) {
    const BlockEntry& block = table_.block(number);
    if (!block.forgotten && Passes(block)) ids.push_back(block.id);
  }
  return ids;
}

PageFilter BlockFilter::Pages() const {
  if (nothing_) return {};
  const bool any_time = !since_ && !before_ && !happened_since_ && !happened_before_;
  if (any_source_ && tags_.empty() && any_time) return PagesOfRoles();
  PageFilter pages;
  for (const int32_t number : Candidates()) {
    const BlockEntry& block = table_.block(number);
    if (!block.forgotten && Passes(block)) pages.Add(block.ScoredPages(table_.page_tokens()));
  }
  return pages;
}

}  // namespace everlong::index
