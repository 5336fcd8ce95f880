// What parts of the index take of blocks, out of their payload: from the draft, or read from the store again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/part.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

struct DecodedBlock {
  std::vector<int32_t> token_ids;  // only out of the store
  index::BlockKeys keys;
  std::vector<float> key_sum;
  std::vector<store::Tensor> tensors;            // only out of the store
  std::vector<index::BlockTensor> tensor_views;  // of these, or of the draft's
};

// A tensor as parts see it; refers to `tensor`: a store::Tensor or store::TensorView.
template <class T>
index::BlockTensor ViewOf(const T& tensor) {
  return {tensor.name, tensor.dtype, tensor.shape, tensor.bytes};
}

// As parts take it. Refers to `decoded`.
index::BlockInput InputOf(const index::BlockEntry& block, int32_t page_tokens, const DecodedBlock& decoded);

// The keys of one block, each layer of them decoded once.
DecodedBlock DecodePayload(const kv::PayloadLayout& layout, std::span<const std::byte> payload, int64_t tokens,
                           const index::PartNeeds& needs);

// Whether a read failed because the writer beside this reader has forgotten the block meanwhile.
bool ForgottenByWriter(const store::MemoryStore& store, const Status& status);

class BlockReader {
 public:
  BlockReader(const store::MemoryStore& store, const kv::PayloadLayout& layout) : store_(store), layout_(layout) {}

  // Calls visit for blocks in their order, many of them in one read; blocks that a writer beside this reader has
  // forgotten are left out, and so is a tensor that is damaged: `damaged` gets what is wrong with it.
  using Visitor = std::function<Status(const index::BlockEntry& block, const DecodedBlock& decoded)>;
  Status Visit(std::span<const index::BlockEntry* const> blocks, const index::PartNeeds& needs, const Visitor& visit,
               std::vector<Status>& damaged) const;

 private:
  // Those of a block that are needed.
  [[nodiscard]] Result<std::vector<store::Tensor>> ReadTensors(int64_t block, const index::PartNeeds& needs,
                                                               std::vector<Status>& damaged) const;
  [[nodiscard]] Result<std::vector<DecodedBlock>> Read(std::span<const index::BlockEntry* const> blocks,
                                                       const index::PartNeeds& needs,
                                                       std::vector<Status>& damaged) const;

  const store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
};

}  // namespace everlong::os
