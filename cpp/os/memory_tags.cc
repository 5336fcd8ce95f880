// The Time -> Tag tree of a memory, made from the tags that are stored with the blocks.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "everlong/graph/own_tags.h"
#include "memory_state.h"

namespace everlong::os {

namespace {

graph::ToldTags ToldOf(const index::BlockTable& table, const index::BlockEntry& block) {
  std::vector<std::string> names;
  for (const int32_t tag : table.tags(block)) names.push_back(table.tag(tag));
  return graph::ToldBy(names);
}

}  // namespace

void Memory::State::SyncTags() const {
  const index::BlockTable& table = index.table();
  // Ids ascend with numbers.
  int32_t number = 0;
  for (int32_t beyond = table.blocks(); number < beyond;) {
    const int32_t middle = number + (beyond - number) / 2;
    if (table.block(middle).id <= tags.newest()) {
      number = middle + 1;
    } else {
      beyond = middle;
    }
  }
  for (; number < table.blocks(); ++number) {
    const index::BlockEntry& block = table.block(number);
    if (block.forgotten) continue;
    const graph::ToldTags told = ToldOf(table, block);
    tags.Add(block.id, told.happened.value_or(block.created_at), block.stream, told.tags);
  }
}

std::map<int64_t, std::vector<std::string>> Memory::State::ToldTagsOf(std::span<const int64_t> blocks) const {
  const auto reading = index.Read();
  std::map<int64_t, std::vector<std::string>> told;
  for (const int64_t id : blocks) {
    const index::BlockEntry* const block = index.table().Find(id);
    if (block != nullptr) told[id] = ToldOf(index.table(), *block).tags;
  }
  return told;
}

void Memory::State::ForgetTags(const std::map<int64_t, std::vector<std::string>>& gone) const {
  const std::scoped_lock changing(tags_guard);
  for (const auto& [id, told] : gone) tags.Forget(id, told);
}

Status Memory::AddTags(int64_t block, std::span<const std::string> tags) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  EVERLONG_RETURN_IF_ERROR(s.store->AddTags(block, tags));
  s.index.AddTags(block, tags);
  const std::scoped_lock changing(s.tags_guard);
  // The tree takes blocks only in order, so it is made anew when it is asked next.
  if (block <= s.tags.newest()) s.tags = {};
  return OkStatus();
}

index::PageFilter Memory::NarrowTo(const NarrowRequest& request, const index::PageFilter& filter,
                                   graph::Narrowed& narrowed) const {
  {
    const std::scoped_lock changing(state_->tags_guard);
    state_->SyncTags();
    narrowed = state_->tags.Narrow(request.query);
  }
  using graph::NarrowedBy;
  if (!request.soft && narrowed.by != NarrowedBy::kTimesAndAllTags) narrowed.blocks.clear();
  const index::BlockTable& table = state_->index.table();
  index::PageFilter left;
  for (const int64_t id : narrowed.blocks) {
    const index::BlockEntry* const block = table.Find(id);
    if (block != nullptr) left.Add(block->pages());
  }
  left = filter.Without(filter.Without(left));
  if (!left.empty() || !request.soft) return left;
  narrowed = {};
  return filter;
}

std::vector<graph::TagTree::Bucket> Memory::TagBuckets() const {
  const auto reading = state_->index.Read();
  const std::scoped_lock changing(state_->tags_guard);
  state_->SyncTags();
  return state_->tags.Buckets();
}

}  // namespace everlong::os
