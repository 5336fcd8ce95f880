// What the objects of a memory share: the store, the index over it, and what each of them guards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "block_tags.h"
#include "everlong/base/page_ref.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/heads.h"
#include "everlong/index/meaning.h"
#include "everlong/index/page_vectors.h"
#include "everlong/index/part_kinds.h"
#include "everlong/index/word_table.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"
#include "graph_growth.h"
#include "index_set.h"
#include "payloads.h"

namespace everlong::os {

// A value that one thread sets, with the turn, and any thread may copy.
template <class T>
class Guarded {
 public:
  [[nodiscard]] T Get() const {
    const std::scoped_lock reading(guard_);
    return value_;
  }
  void Set(T value) {
    const std::scoped_lock setting(guard_);
    value_ = std::move(value);
  }

 private:
  mutable std::mutex guard_;
  T value_;
};

// Locks are taken in this order: the turn of `index`, the hold of `growth`, Read of `index`, the lock of `tags`.
struct MemoryState {
  MemoryState(std::unique_ptr<store::MemoryStore> of, const kv::PayloadLayout& with)
      : store(std::move(of)),
        layout(with),
        payloads(*store, layout),
        index(*store, layout, payloads),
        growth(*store, layout, payloads, index),
        tags(index) {
    for (const index::IndexPart part : index::AllIndexParts()) {
      if (index::KindOf(part).from_pack) meaning[part.number];
    }
  }

  const std::unique_ptr<store::MemoryStore> store;
  const kv::PayloadLayout layout;
  const Payloads payloads;
  // Return whether blocks have token ids and no payload (store::TextAlone).
  [[nodiscard]] bool text_alone() const { return layout.layers == 0; }
  IndexSet index;
  GraphGrowth growth;
  BlockTags tags;
  Guarded<std::vector<index::RetrievalHead>> heads;
  Guarded<std::shared_ptr<const index::WordTable>> words;                    // of the part "words"
  std::map<uint8_t, Guarded<std::optional<index::MeaningOptions>>> meaning;  // by IndexPart::number; the keys stay

  // Take a turn. kReadOnly for a memory that was opened for reading; the error of an index that is broken.
  [[nodiscard]] Result<IndexSet::Writer> TurnToWrite();

  // --- for the holder of the turn

  // Token ids of blocks that were submitted and may yet be lost, by block.
  std::map<int64_t, std::vector<int32_t>> submitted;
  std::optional<index::PageVectorOptions> page_vectors;
  // Freed heap goes back to the system after so many tokens, if the process has grown meanwhile. Until then it is small
  // beside a forward's memory.
  static constexpr int64_t kTrimTokens = 16'384;
  int64_t appended_tokens = 0;

  // Wait for the store, and take blocks that it could not keep out of the index.
  Status Flush(IndexSet::Writer& writer);
};

// Return the name of a page of the table.
PageRef RefOf(const index::BlockTable& table, int32_t ordinal);
// Add the pages of a block, in order.
void AddPagesOf(const index::BlockTable& table, const index::BlockEntry& block, std::vector<PageRef>& pages);

}  // namespace everlong::os
