// The blocks of a memory: archive them, read them, forget them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/index/block_table.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

struct MemoryState;  // private

// Which of the blocks that pass a filter are listed, by id: a page of a long list, or those of a few ids.
struct BlockSlice {
  int64_t behind = 0;                                  // blocks with a larger id: the last one of the page before
  int64_t most = std::numeric_limits<int64_t>::max();  // so many at most
  std::optional<std::vector<int64_t>> among = {};      // of these ids, which are looked up one by one
};

// Thread-safe: reads run beside each other and beside searches. Changes take turns with every other change of the
// memory, and exclude reads only while they put the outcome in place. Reads of a read-only memory are kNotFound for
// what its writer has forgotten.
class Blocks {
 public:
  // Archive a block and index it: payload in Memory::layout(), durable after the next Flush. Return the block's id. A
  // block that could not be stored leaves every search and read once Flush, or a later Append, has reported it. The
  // layout decides the page sizes, so draft.page_bytes is not read, nor is a tag that says how it is coded.
  // kInvalidArgument when a size does not fit, when a key that the indexes read is not finite, or when the span begins
  // before StreamEnd(stream).
  Result<int64_t> Append(const store::BlockDraft& draft);
  // Put tensors of a block into the store, durable on return. Each replaces the one of its name. Parts of the index
  // that take such tensors get them. kNotFound for an unknown or forgotten block. kInvalidArgument when a part or the
  // store refuses one; then none is stored.
  Status PutTensors(int64_t block, std::span<const store::TensorView> tensors);
  // Drop tensors of a block by their names, as the store does. Parts of the index that took one of them have nothing of
  // the block then, until such a tensor comes again. kNotFound for an unknown or forgotten block.
  Status DropTensors(int64_t block, std::span<const std::string> names);
  // Add tags of a block behind those it has, durable on return, as the store does. Later searches use them. The tag
  // that says how a block is coded (docs/format.md) follows its payload alone: here it is kInvalidArgument, and SetTags
  // keeps the one that the block has, and no other.
  Status AddTags(int64_t block, std::span<const std::string> tags);
  // Give a block these tags in place of those it has.
  Status SetTags(int64_t block, std::span<const std::string> tags);
  // Return every page that is not forgotten, in order of archiving.
  [[nodiscard]] std::vector<PageRef> Pages() const;
  // Return the blocks that pass, by id. Without roles here, those of every role. A slice costs what it returns, where
  // the filter chooses nothing, or chooses by what the index knows. A list of another filter ends where the slice is
  // full. kInvalidArgument for a slice of no blocks.
  [[nodiscard]] Result<std::vector<store::BlockInfo>> Infos(const index::SearchFilter& filter = {},
                                                            const BlockSlice& slice = {}) const;
  [[nodiscard]] Result<store::BlockInfo> Info(int64_t id) const;  // kNotFound
  // Remove blocks from every later search and read, and from document frequencies. All or none, but on a full disk:
  // there they may go some at a time, each with its payload, which makes room for the next. `freed`, if given, gets the
  // bytes that were given back so. An error then leaves some of them forgotten.
  Status Forget(std::span<const int64_t> blocks, int64_t* freed = nullptr);
  [[nodiscard]] int64_t StreamEnd(int64_t stream) const;  // one past the newest archived token; 0 when there is none
  // Return the pages that hold `span` of `stream`, in order of time. kNotFound if a token is not archived, or
  // forgotten.
  [[nodiscard]] Result<std::vector<PageRef>> PagesOf(int64_t stream, TokenSpan span) const;

  // Return the name of a block's codec; and the layout of what reads of it give: Memory::layout(), but for the codec of
  // a block that was coded anew. A transformed block is read as fp32.
  [[nodiscard]] Result<std::string> Codec(int64_t block) const;
  [[nodiscard]] Result<kv::PayloadLayout> Layout(int64_t block) const;
  // Read the payload of whole pages, one after the other: sum of Layout(block).PageBytes(tokens of each). kNotFound;
  // kInvalidArgument when a page differs from the memory's in stream, span or sinks, or out has another size. kBusy
  // when a page is not read as `codec` (not set: as the memory's blocks are), or is being coded anew.
  [[nodiscard]] Status ReadPages(std::span<const PageRef> pages, std::span<std::byte> out,
                                 std::optional<kv::Codec> codec = {}) const;
  // Do the same for layers [first_layer, first_layer + layers) of each page, without waiting. `out` is filled once Wait
  // has returned. Destroy the result before this memory and before `out`.
  [[nodiscard]] Result<std::unique_ptr<store::PendingReads>> StartReadPages(std::span<const PageRef> pages,
                                                                            int32_t first_layer, int32_t layers,
                                                                            std::span<std::byte> out,
                                                                            std::optional<kv::Codec> codec = {}) const;
  // Read the un-rotated keys of one page and archived layer, [Hkv, tokens, D] fp32, for calibration.
  [[nodiscard]] Status ReadKeys(const PageRef& page, int32_t layer, std::span<float> keys) const;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t stream, TokenSpan span) const;
  // Read the store's tensors of one block.
  [[nodiscard]] Result<std::vector<store::TensorInfo>> Tensors(int64_t block) const;
  [[nodiscard]] Result<store::Tensor> ReadTensor(int64_t block, const std::string& name) const;

 private:
  friend class Memory;
  explicit Blocks(MemoryState& state) : state_(state) {}

  MemoryState& state_;  // of the memory, which outlives this
};

}  // namespace everlong::os
