// The Time -> Tag tree of a memory, made from the tags that are stored with the blocks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "everlong/graph/tag_tree.h"
#include "index_set.h"

namespace everlong::os {

// Thread-safe. Its lock is taken last of all.
class BlockTags {
 public:
  explicit BlockTags(const IndexSet& index) : index_(index) {}  // outlives it

  using Told = std::map<int64_t, std::vector<std::string>>;
  // Return the tags of blocks of the table, by id, before they leave it. Forget then removes them from the tree.
  [[nodiscard]] Told ToldOf(std::span<const int64_t> blocks) const;
  void Forget(const Told& gone);
  // Notice that a block of the table has more tags.
  void Added(int64_t block);

  // --- while the index is read
  [[nodiscard]] graph::Narrowed Narrow(const graph::TagQuery& query);
  [[nodiscard]] std::vector<graph::TagTree::Bucket> Buckets();

 private:
  // Add blocks of the table that the tree lacks.
  void Sync();

  const IndexSet& index_;
  std::mutex guard_;
  graph::TagTree tree_;  // blocks of the table up to one; filled when it is asked
};

}  // namespace everlong::os
