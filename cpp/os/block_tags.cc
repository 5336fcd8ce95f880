#include "block_tags.h"

#include "everlong/graph/own_tags.h"

namespace everlong::os {
namespace {

graph::ToldTags ToldTagsOf(const index::BlockTable& table, const index::BlockEntry& block) {
  std::vector<std::string> names;
  for (const int32_t tag : table.tags(block)) names.push_back(table.tag(tag));
  return graph::ToldBy(names);
}

}  // namespace

void BlockTags::Sync() {
  const index::BlockTable& table = index_.table();
  for (int32_t number = table.NumberBehind(tree_.newest()); number < table.blocks(); ++number) {
    const index::BlockEntry& block = table.block(number);
    if (block.forgotten) continue;
    const graph::ToldTags told = ToldTagsOf(table, block);
    tree_.Add(block.id, told.happened.value_or(block.created_at), block.stream, told.tags);
  }
}

BlockTags::Told BlockTags::ToldOf(std::span<const int64_t> blocks) const {
  const auto reading = index_.Read();
  Told told;
  for (const int64_t id : blocks) {
    const index::BlockEntry* const block = index_.table().Find(id);
    if (block != nullptr) told[id] = ToldTagsOf(index_.table(), *block).tags;
  }
  return told;
}

void BlockTags::Forget(const Told& gone) {
  const std::scoped_lock changing(guard_);
  for (const auto& [id, told] : gone) tree_.Forget(id, told);
}

void BlockTags::Added(int64_t block) {
  const std::scoped_lock changing(guard_);
  // The tree takes blocks only in order, so it is made anew when it is asked next.
  if (block <= tree_.newest()) tree_ = {};
}

graph::Narrowed BlockTags::Narrow(const graph::TagQuery& query) {
  const std::scoped_lock changing(guard_);
  Sync();
  return tree_.Narrow(query);
}

std::vector<graph::TagTree::Bucket> BlockTags::Buckets() {
  const std::scoped_lock changing(guard_);
  Sync();
  return tree_.Buckets();
}

}  // namespace everlong::os
