// Whether the blocks of a store that another program may have written are such as a memory has.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

// What messages call a memory.
std::string NameOf(const store::MemoryStore& store);

// Of stored blocks, in the order of their ids: whether Append could have stored them.
class StoredBlocks {
 public:
  StoredBlocks(const kv::PayloadLayout& layout, std::string memory) : layout_(layout), memory_(std::move(memory)) {}
  // kCorrupt when the next one is not of this layout, or overlaps what came before.
  Status CheckNext(const store::BlockInfo& info);
  // kCorrupt when these are not such as a block of `span` has.
  [[nodiscard]] Status CheckTokenIds(int64_t block, TokenSpan span, std::span<const int32_t> token_ids) const;

 private:
  [[nodiscard]] std::string NameOfBlock(int64_t block) const { return memory_ + ": block " + std::to_string(block); }

  kv::PayloadLayout layout_;
  std::string memory_;
  std::map<int64_t, int64_t> ends_;  // of streams
};

}  // namespace everlong::os
