// Checks that the blocks of a store are valid, because another program may have written it.
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

// Return a memory's name for messages.
std::string NameOf(const store::MemoryStore& store);

// Checks stored blocks, in the order of their ids: whether Append could have stored them.
class StoredBlocks {
 public:
  StoredBlocks(const kv::PayloadLayout& layout, std::string memory) : layout_(layout), memory_(std::move(memory)) {}
  // Return kCorrupt when the next block is not of this layout, or overlaps an earlier one.
  Status CheckNext(const store::BlockInfo& info);
  // Return kCorrupt when these cannot be the token ids of a block of `span`.
  [[nodiscard]] Status CheckTokenIds(int64_t block, TokenSpan span, std::span<const int32_t> token_ids) const;

 private:
  [[nodiscard]] std::string NameOfBlock(int64_t block) const { return memory_ + ": block " + std::to_string(block); }

  kv::PayloadLayout layout_;
  std::string memory_;
  std::map<int64_t, int64_t> ends_;  // of streams
};

}  // namespace everlong::os
