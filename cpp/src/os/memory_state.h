// What stands behind os::Memory: the store and the index over it.
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
  // Whether blocks have token ids and no payload (store::TextAlone).
  [[nodiscard]] bool text_alone() const { return layout.layers == 0; }
  IndexSet index;

  // --- whoever has the turn of `index`

  // Token ids of blocks that were submitted and may yet be lost, by block.
  std::map<int64_t, std::vector<int32_t>> submitted;
  std::optional<index::PageVectorOptions> page_vectors;
  // Since freed heap went back to the system. What is kept in between is a small part of a forward's.
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

  // What stands in the store, in the memory that a change needs. Under graph_guard.
  Status OpenGraph();
  // MemoryStore::Forget, and what is left of the graph in the same commit. Under graph_guard.
  Status ForgetFromStore(std::span<const int64_t> blocks);

  // --- under its own lock, taken last of all
  mutable std::mutex tags_guard;
  mutable graph::TagTree tags;  // blocks of the table up to one; made as it is asked

  // Takes into `tags` what the table has and it has not. While the index is read, under tags_guard.
  void SyncTags() const;
  // Of blocks of the table, by id, before they leave it; takes them out of `tags` once they are gone.
  [[nodiscard]] std::map<int64_t, std::vector<std::string>> ToldTagsOf(std::span<const int64_t> blocks) const;
  void ForgetTags(const std::map<int64_t, std::vector<std::string>>& gone) const;

  // Waits for the store, and takes blocks that it could not keep out of the index. By whoever has the turn.
  Status Flush();
};

// Names of a page of the table.
PageRef RefOf(const index::BlockTable& table, int32_t ordinal);
// The pages of a block, in order.
void AddPagesOf(const index::BlockTable& table, const index::BlockEntry& block, std::vector<PageRef>& pages);

}  // namespace everlong::os
