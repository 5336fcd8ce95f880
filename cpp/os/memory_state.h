// The state of os::Memory: the store and the index over it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/memory_graph.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/index/heads.h"
#include "everlong/index/meaning.h"
#include "everlong/index/page_vectors.h"
#include "everlong/kv/payload.h"
#include "everlong/os/memory.h"
#include "everlong/store/memory_store.h"
#include "index_set.h"

namespace everlong::os {

struct Memory::State {
  State(std::unique_ptr<store::MemoryStore> of, const kv::PayloadLayout& with)
      : store(std::move(of)), layout(with), index(*store, layout) {}

  const std::unique_ptr<store::MemoryStore> store;
  const kv::PayloadLayout layout;
  // Return whether blocks have token ids and no payload (store::TextAlone).
  [[nodiscard]] bool text_alone() const { return layout.layers == 0; }
  IndexSet index;

  // --- for the holder of the turn of `index`

  // Token ids of blocks that were submitted and may yet be lost, by block.
  std::map<int64_t, std::vector<int32_t>> submitted;
  std::optional<index::PageVectorOptions> page_vectors;
  // Freed heap goes back to the system after so many tokens. Until then it is small beside a forward's memory.
  static constexpr int64_t kTrimTokens = 16'384;
  int64_t appended_tokens = 0;

  // --- under its own lock
  mutable std::mutex options_guard;
  std::vector<index::RetrievalHead> heads;
  std::optional<index::MeaningOptions> meaning;

  // --- under its own lock, taken after the turn of `index` and before its Read
  std::mutex graph_guard;
  std::optional<graph::GraphOptions> graph_options;  // of a graph that grows
  std::unique_ptr<graph::MemoryGraph> graph;  // opened when it is needed; closed when a change could not be stored
  int64_t tended_to = 0;                      // blocks up to this one have nodes, or get none

  // Open the stored graph for a change. Call it under graph_guard.
  Status OpenGraph();
  // Call MemoryStore::Forget, and mend the graph in the same commit. Call it under graph_guard.
  Status ForgetFromStore(std::span<const int64_t> blocks);

  // --- under its own lock, taken last of all
  mutable std::mutex tags_guard;
  mutable graph::TagTree tags;  // blocks of the table up to one; filled when it is asked

  // Add blocks of the table that `tags` lacks. Call it while the index is read, under tags_guard.
  void SyncTags() const;
  // Return the tags of blocks of the table, by id, before they leave it. ForgetTags then removes them from `tags`.
  [[nodiscard]] std::map<int64_t, std::vector<std::string>> ToldTagsOf(std::span<const int64_t> blocks) const;
  void ForgetTags(const std::map<int64_t, std::vector<std::string>>& gone) const;

  // Wait for the store, and take blocks that it could not keep out of the index. The holder of the turn calls it.
  Status Flush();
};

// Return the name of a page of the table.
PageRef RefOf(const index::BlockTable& table, int32_t ordinal);
// Add the pages of a block, in order.
void AddPagesOf(const index::BlockTable& table, const index::BlockEntry& block, std::vector<PageRef>& pages);

}  // namespace everlong::os
